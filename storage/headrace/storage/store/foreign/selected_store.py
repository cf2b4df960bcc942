"""Some of a store's objects, to read: the others are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.storage.store.name_store import NameStore
from headrace.storage.store.store import ObjectEntry, Store, Version


class SelectedStore(NameStore):
    """Objects of another store, under their names there.

    Args:
        url: What they are called together, from which they are found again.
        whole: The store, which this owns.
        entries: The objects.
    """

    def __init__(self, url: str, whole: Store, entries: Iterable[ObjectEntry]) -> None:
        super().__init__(url)
        self._whole = whole
        self._entries = {entry.name: entry for entry in entries}

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if name not in self._entries:
            return super().read(name)
        return self._whole.read(name, offset=offset, length=length)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        return (
            self._whole.read_versioned(name)
            if name in self._entries
            else super().read_versioned(name)
        )

    def list(self, prefix: str = "") -> Iterator[str]:
        return (name for name in self._entries if name.startswith(prefix))

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        return (self._entries[name] for name in self.list(prefix))

    def entry(self, name: str) -> ObjectEntry | None:
        return self._entries.get(name)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        if entry.name not in self._entries:
            return super().read_entry(entry, offset=offset, length=length)
        return self._whole.read_entry(entry, offset=offset, length=length)

    def close(self) -> None:
        self._whole.close()
