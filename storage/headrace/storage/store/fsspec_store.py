"""Use any file system of fsspec as a store: ``gs://``, ``abfs://``, ``memory://`` and so on.

fsspec has no conditional writes, so a commit writes a marker first, lists all markers, and
continues only if its own is the only one. If two commits coincide, at least one is refused, perhaps
both. They never both succeed, provided that the store lists everything that was written.

Most file systems publish a file whenever it is closed, even after an error. So a writer collects
its object in a temporary file and sends it on `close`, which can be retried; an aborted object
never reaches the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar

import fsspec

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
    WorldError,
)
from headrace.storage.store.names import check_name
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.os_errors import translated
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import (
    MARKER_FOLDER,
    ObjectEntry,
    Unfinished,
    Version,
    content_version,
    read_unchanged,
    time_version,
)

# The file systems of S3, Google, Azure and Hugging Face use these names.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_MARKER = re.compile(rf"{MARKER_FOLDER}/[0-9a-f]{{32}}")  # others' files say nothing of commits
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class FsspecStore:
    """Objects under one path of an fsspec file system."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        try:
            self._files, path = fsspec.core.url_to_fs(url, **options.fsspec)
        except OSError as error:
            raise StoreUnavailableError(
                f"the store of {safe_url(url)!r} does not answer ({type(error).__name__}: "
                f"{error.strerror or 'no reason given'}); check the host name and the network"
            ) from None
        except Exception as error:  # noqa: BLE001 - packages of other protocols raise what they like
            found = f"{type(error).__name__}: {safe_url(str(error))}"
            raise BadArgumentError(
                f"{safe_url(url)!r} cannot be opened: {found}; expected a path, file://, s3:// or "
                "a scheme whose fsspec package is installed",
                field="url",
            ) from None  # the cause may contain the whole URL
        self._root = str(path).rstrip("/")
        self._url = safe_url(url).rstrip("/")
        self._retry = options.retry

    @property
    def url(self) -> str:
        return self._url

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        path = self._path(name)
        stop = None if length is None else offset + length

        return self._call(name, lambda: bytes(self._files.cat_file(path, start=offset, end=stop)))

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        content = self.read(name)
        return content, Version(hashlib.blake2b(content, digest_size=16).hexdigest())

    def write(self, name: str, content: bytes) -> None:
        path = self._path(name)

        def send() -> None:
            self._make_parent(path)
            self._files.pipe_file(path, content)

        self._call(name, send)

    def write_if_absent(self, name: str, content: bytes) -> None:
        with self._exclusively(name):
            try:
                self.read(name, length=1)
            except ObjectNotFoundError:
                self.write(name, content)
            else:
                raise self._conflict(name, "it exists")

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        with self._exclusively(name):
            if self.read_versioned(name)[1] != version:
                raise self._conflict(name, "it has changed")
            self.write(name, content)

    def list(self, prefix: str = "") -> Iterator[str]:
        for entry in self.list_entries(prefix):
            yield entry.name

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        def find() -> dict[str, Mapping[str, object]]:
            self._files.invalidate_cache()  # otherwise later writes of others are missing
            return dict(self._files.find(self._root, detail=True))

        try:
            found = self._call(prefix, find)
        except ObjectNotFoundError:
            return
        for path, state in found.items():
            name = str(path).removeprefix(self._root).lstrip("/")
            if name and name.startswith(prefix):  # a root that is a file lists itself
                yield entry_of(name, state)

    def entry(self, name: str) -> ObjectEntry | None:
        try:
            state = self._call(name, lambda: self._files.info(f"{self._root}/{name}"))
        except ObjectNotFoundError:
            return None
        return entry_of(name, state) if state.get("type") == "file" else None

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        content = self.read(entry.name, offset=offset, length=length)
        if len(content) != length:  # checking each time would double the requests
            return read_unchanged(self, entry, offset=offset, length=length)
        return content

    def list_unfinished(self) -> Iterator[Unfinished]:
        return iter(())  # fsspec cannot list unfinished uploads

    def discard(self, unfinished: Unfinished) -> None:
        raise BadArgumentError(f"{unfinished} belongs to another store", field="unfinished")

    def delete(self, name: str) -> None:
        path = self._path(name)
        with contextlib.suppress(ObjectNotFoundError):
            self._call(name, lambda: self._files.rm_file(path))

    def open_writer(self, name: str) -> FsspecWriter:
        check_name(name)
        return FsspecWriter(self, name=name)

    def put(self, name: str, source: str) -> None:
        """Write or replace a whole object.

        Args:
            name: The name of the object.
            source: The path of a file of this machine with its content.
        """
        path = self._path(name)

        def send() -> None:
            self._make_parent(path)
            self._files.put_file(source, path)

        self._call(name, send)

    def close(self) -> None:
        pass

    def _call(self, name: str, request: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            with _translated(name, self.url):
                return request()

        return call_with_retries(attempt, self._retry)

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self._root}/{name}"

    def _make_parent(self, path: str) -> None:
        self._files.makedirs(path.rpartition("/")[0], exist_ok=True)

    @contextlib.contextmanager
    def _exclusively(self, name: str) -> Iterator[None]:
        marker = f"{MARKER_FOLDER}/{uuid.uuid4().hex}"
        try:
            self.write(marker, name.encode())
            listed = self.list(f"{MARKER_FOLDER}/")
            others = [found for found in listed if found != marker and _MARKER.fullmatch(found)]
            if others:
                raise self._conflict(name, f"another commit is under way ({others[0]})")
            yield
        finally:  # also if the write failed, because it may have arrived
            self._unmark(marker)

    def _unmark(self, marker: str) -> None:
        try:
            self.delete(marker)
        except WorldError as error:  # says nothing about the commit
            _LOG.warning(
                "remove marker %s from %s, or all commits fail: %s", marker, self.url, error
            )

    def _conflict(self, name: str, found: str) -> CommitConflictError:
        return CommitConflictError(
            f"{name} in {self.url} was not written: {found}; try again, and remove "
            f"{MARKER_FOLDER}/ there if nothing else is writing",
            url=self.url,
            name=name,
        )


class FsspecWriter:
    """An object that is collected in a temporary file and sent when it is closed."""

    def __init__(self, store: FsspecStore, *, name: str) -> None:
        self._store = store
        self._name = name
        with translated(name, store.url, advice="check the temporary folder"):
            self._file = tempfile.NamedTemporaryFile(prefix="headrace-")  # noqa: SIM115 - for `abort`

    def write(self, chunk: bytes) -> None:
        with translated(self._name, self._store.url, advice="check the temporary folder"):
            self._file.write(chunk)

    def close(self) -> None:
        with translated(self._name, self._store.url, advice="check the temporary folder"):
            self._file.flush()
        self._store.put(self._name, self._file.name)
        self._file.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


@contextlib.contextmanager
def _translated(name: str, url: str) -> Iterator[None]:
    """Raise our errors in place of those of a file system.

    Raises:
        ObjectNotFoundError: There is no such object.
        StoreRefusedError: Access is refused, or the file system cannot do this.
        StoreUnavailableError: Anything else failed. The clients of some stores have errors of
            their own, such as those of aiohttp, which have no common root.
    """
    try:
        with translated(name, url, advice="check the credentials"):
            yield
    except (HeadraceError, ImportError, TypeError):  # the last two are not the world's fault
        raise
    except NotImplementedError as error:
        raise StoreRefusedError(
            f"{name} in {url} needs an operation that its file system lacks: {error!r}; "
            "use another store",
            url=url,
            name=name,
        ) from error
    except Exception as error:
        found = f"{type(error).__name__}: {safe_url(str(error))}"
        raise _kind_of(error)(
            f"the store failed at {name} in {url}: {found}", url=url, name=name
        ) from error


def _kind_of(error: Exception) -> type[WorldError]:
    status = getattr(error, "status", None) or getattr(error, "code", None)
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return StoreRefusedError
    return ObjectNotFoundError if status == HTTPStatus.NOT_FOUND else StoreUnavailableError


def _modified_s(state: Mapping[str, object]) -> float | None:
    match _stamp(state):
        case int() | float() as stamp:
            return float(stamp)
        case datetime() as stamp:
            return (stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp()
        case str() as stamp:
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(stamp).timestamp()
    return None


def entry_of(name: str, state: Mapping[str, object]) -> ObjectEntry:
    """Return the entry of a file of an fsspec file system.

    Args:
        name: The name relative to the root.
        state: The result of ``info`` or ``find``.
    """
    size = state.get("size")
    tag = next((state[key] for key in _TAGS if state.get(key)), None)
    stamp = _stamp(state)
    version = time_version("unknown" if stamp is None else stamp)
    if tag is not None:
        version = content_version(f"{tag}")
    return ObjectEntry(name, size if isinstance(size, int) else 0, version, _modified_s(state))


def _stamp(state: Mapping[str, object]) -> object:
    return next((state[key] for key in _TIMES if state.get(key) is not None), None)
