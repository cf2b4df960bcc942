"""Errors for files of a newer headrace, which this one does not read, repair or replace."""

from __future__ import annotations

from headrace.errors import ManifestCorruptError


class NewerFormatError(ManifestCorruptError):
    """A file states a format version that is newer than this headrace."""


def newer_format(place: str, found: str) -> NewerFormatError:
    """Return the error.

    Args:
        place: The place of the file.
        found: The version that it states, and the versions that this headrace reads.
    """
    return NewerFormatError(
        f"{place}: {found}; a newer headrace may be able to read it. If the file is damaged, "
        "restore it, or remove it and run `headrace verify --repair-manifest`",
        place=place,
    )
