"""Check that files opened by a stored index have not changed since it was made."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from headrace.errors import ObjectNotFoundError
from headrace.storage.store.store import ObjectEntry

_THREADS = 32


def check_unchanged(
    indexed: Iterable[ObjectEntry],
    listed: Iterable[ObjectEntry],
    *,
    url: str,
    ask: Callable[[str], ObjectEntry | None] = lambda _: None,
) -> None:
    """Compare the files of an index with the current ones; files may have been added since.

    Args:
        indexed: The files of the index.
        listed: The current ones.
        url: Where they are, for errors.
        ask: Returns the entry of a file that is not listed, because it lies elsewhere.

    Raises:
        ShardCorruptError: A file has changed; names it.
        ObjectNotFoundError: A file is missing; names it.
    """
    found = {entry.name: entry for entry in listed}
    wanted_entries = tuple(indexed)
    rest = [entry.name for entry in wanted_entries if entry.name not in found]
    with ThreadPoolExecutor(_THREADS, "headrace-unchanged") as pool:
        found |= {entry.name: entry for entry in pool.map(ask, rest) if entry is not None}
    for wanted in wanted_entries:
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
