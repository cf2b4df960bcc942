"""Files of a newer headrace, which this one neither reads nor repairs nor replaces."""

from __future__ import annotations

from headrace.errors import ManifestCorruptError


class NewerFormatError(ManifestCorruptError):
    """A file states a version of its format that came after this headrace."""


def newer_format(place: str, found: str) -> NewerFormatError:
    """Make the error.

    Args:
        place: Where the file is.
        found: The version that it states, and those that this headrace reads.
    """
    return NewerFormatError(
        f"{place}: {found}; a newer headrace may be able to read it. If the file is damaged, "
        "restore it, or remove it and run `headrace verify --repair-manifest`",
        place=place,
    )
