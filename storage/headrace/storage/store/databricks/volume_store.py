"""A volume of Unity Catalog on a machine that does not mount it, to read and to write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

from headrace.storage.store.store import ObjectEntry, ObjectWriter, PendingUpload, Store, Version


class VolumeStore:
    """A folder of a volume: keys that may write are asked for with the first write.

    Args:
        url: Its URL, by the volume's name, so that others who open it ask for keys of their own.
        reading: The store of its location, with keys that read.
        open_writing: Opens the same store with keys that write.
    """

    def __init__(self, url: str, reading: Store, open_writing: Callable[[], Store]) -> None:
        self.url = url.rstrip("/")
        self._reading = reading
        self._open_writing = open_writing
        self._opened: Store | None = None
        self._lock = threading.Lock()

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return self._reading.read(name, offset=offset, length=length)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        return self._reading.read_versioned(name)

    def write(self, name: str, content: bytes) -> None:
        self._writing.write(name, content)

    def write_if_absent(self, name: str, content: bytes) -> None:
        self._writing.write_if_absent(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        self._writing.write_if_unchanged(name, content, version)

    def list(self, prefix: str = "") -> Iterator[str]:
        return self._reading.list(prefix)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        return self._reading.list_entries(prefix)

    def entry(self, name: str) -> ObjectEntry | None:
        return self._reading.entry(name)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        return self._reading.read_entry(entry, offset=offset, length=length)

    def list_unfinished(self) -> Iterator[PendingUpload]:
        return self._writing.list_unfinished()

    def discard(self, unfinished: PendingUpload) -> None:
        self._writing.discard(unfinished)

    def delete(self, name: str) -> None:
        self._writing.delete(name)

    def open_writer(self, name: str) -> ObjectWriter:
        return self._writing.open_writer(name)

    def below(self, name: str) -> VolumeStore:
        def open_writing() -> Store:
            with closing(self._open_writing()) as whole:
                return whole.below(name)

        return VolumeStore(f"{self.url}/{name}", self._reading.below(name), open_writing)

    def close(self) -> None:
        self._reading.close()
        if self._opened is not None:
            self._opened.close()

    @property
    def _writing(self) -> Store:
        with self._lock:
            self._opened = self._opened or self._open_writing()
            return self._opened
