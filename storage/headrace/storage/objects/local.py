"""Files of this machine, with their sizes and times."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import StoreRefusedError, StoreUnavailableError
from headrace.storage.objects.objects import FileEntry, short_read, time_version
from headrace.storage.store.local import LocalStore


class LocalFiles:
    """Files under a directory; links to files count, links to directories do not."""

    def __init__(self, url: str) -> None:
        self._store = LocalStore(url)
        self._root = Path(self._store.url)

    @property
    def url(self) -> str:
        return self._store.url

    def entries(self) -> Iterator[FileEntry]:
        for folder, _, files in os.walk(self._root, onerror=self._refuse):
            for file in files:
                entry = self.entry(Path(folder, file).relative_to(self._root).as_posix())
                if entry is not None:
                    yield entry

    def entry(self, name: str) -> FileEntry | None:
        path = self._root / name
        try:
            if not path.is_file():
                return None
            state = path.stat()
        except FileNotFoundError:
            return None  # removed between two looks
        except OSError as error:
            raise self._failure(error, name) from error
        return FileEntry(name, state.st_size, time_version(state.st_mtime_ns))

    def read(self, entry: FileEntry, *, offset: int, length: int) -> bytes:
        content = self._store.read(entry.name, offset=offset, length=length)
        # After the read, so that a file replaced before or meanwhile is noticed.
        found = self.entry(entry.name)
        if found is not None and found != entry:
            raise entry.changed(found, url=self.url)
        if len(content) != length:
            raise short_read(entry, url=self.url, offset=offset, found=len(content))
        return content

    def close(self) -> None:
        self._store.close()

    def _refuse(self, error: OSError) -> None:
        # A root that is not there has no files; a directory that cannot be read has hidden ones.
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise self._failure(error, str(error.filename)) from error

    def _failure(self, error: OSError, name: str) -> StoreRefusedError | StoreUnavailableError:
        if isinstance(error, PermissionError):
            return StoreRefusedError(
                f"the system refuses access to {name} in {self.url} ({error.strerror}) as user "
                f"{os.getuid()}; check owner and mode",
                url=self.url,
                name=name,
            )
        return StoreUnavailableError(
            f"the system failed at {name} in {self.url}: {error.strerror}", url=self.url, name=name
        )
