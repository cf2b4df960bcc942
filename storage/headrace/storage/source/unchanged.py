"""Check that files opened by a stored index have not changed since it was made."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.errors import ObjectNotFoundError
from headrace.storage.store.store import ObjectEntry


def check_unchanged(
    indexed: Iterable[ObjectEntry], listed: Iterable[ObjectEntry], *, url: str
) -> None:
    """Compare the files of an index with the current ones; files may have been added since.

    Raises:
        ShardCorruptError: A file has changed; names it.
        ObjectNotFoundError: A file is missing; names it.
    """
    found = {entry.name: entry for entry in listed}
    for wanted in indexed:
        entry = found.get(wanted.name)
        if entry is None:
            raise ObjectNotFoundError(
                f"file {wanted.name[:200]} of the index is not in {url}; restore it, or store "
                "the index again with `headrace index`",
                url=url,
                name=wanted.name[:200],
            )
        if entry != wanted:
            raise wanted.changed(entry, url=url)
