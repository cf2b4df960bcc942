"""Files of anything that fsspec can open, with their sizes and what it knows of versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import fsspec

from headrace.errors import BadArgumentError, StoreRefusedError, StoreUnavailableError
from headrace.storage.objects.objects import (
    FileEntry,
    content_version,
    short_read,
    time_version,
)
from headrace.storage.store.fsspec_store import FsspecStore
from headrace.storage.store.options import StoreOptions

# Under these names the file systems of S3, Google, Azure and Hugging Face give what they have.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecFiles:
    """Files under one path of an fsspec file system."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        self._store = FsspecStore(url, options=options)
        try:
            self._files, path = fsspec.core.url_to_fs(url, **options.fsspec)
        except (ImportError, ValueError) as error:
            raise BadArgumentError(f"{url!r} cannot be opened: {error}", field="url") from error
        self._root = str(path).rstrip("/")

    @property
    def url(self) -> str:
        return self._store.url

    def entries(self) -> Iterator[FileEntry]:
        self._files.invalidate_cache()  # else a dataset opened anew is the one of before
        try:
            found = self._files.find(self._root, detail=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failure(error) from error
        for path, state in found.items():
            name = str(path).removeprefix(self._root).lstrip("/")
            if name:  # a root that is a file finds itself
                yield _entry(name, state)

    def entry(self, name: str) -> FileEntry | None:
        try:
            state = self._files.info(f"{self._root}/{name}")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failure(error) from error
        return _entry(name, state) if state.get("type") == "file" else None

    def read(self, entry: FileEntry, *, offset: int, length: int) -> bytes:
        content = self._store.read(entry.name, offset=offset, length=length)
        if len(content) != length:
            found = self.entry(entry.name)
            if found is not None and found != entry:
                raise entry.changed(found, url=self.url)
            raise short_read(entry, url=self.url, offset=offset, found=len(content))
        return content

    def close(self) -> None:
        self._store.close()

    def _failure(self, error: OSError) -> StoreRefusedError | StoreUnavailableError:
        if isinstance(error, PermissionError):
            return StoreRefusedError(
                f"the store refuses {self.url}: {error}; check the credentials", url=self.url
            )
        return StoreUnavailableError(f"the store failed at {self.url}: {error}", url=self.url)


def _entry(name: str, state: Mapping[str, object]) -> FileEntry:
    size = state.get("size")
    stored_bytes = size if isinstance(size, int) else 0
    for key in _TAGS:
        if state.get(key):
            return FileEntry(name, stored_bytes, content_version(f"{state[key]}"))
    stamp = next((state[key] for key in _TIMES if state.get(key) is not None), "unknown")
    return FileEntry(name, stored_bytes, time_version(stamp))
