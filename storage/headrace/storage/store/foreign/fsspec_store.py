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
import copy
import hashlib
import logging
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar

import fsspec
from fsspec.config import conf, conf_dir, set_conf_files

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
    WorldError,
)
from headrace.storage.store.byte_range import ByteRange, WrongBytesError
from headrace.storage.store.foreign.answers import (
    checked,
    observe,
    observed_options,
    seeing_answers,
)
from headrace.storage.store.foreign.errors import LACKING, status_of, translated_fsspec
from headrace.storage.store.names import check_below, check_name
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.os_errors import translated
from headrace.storage.store.retry import call_with_retries
from headrace.storage.store.safe_url import safe_url
from headrace.storage.store.store import (
    MARKER_FOLDER,
    ObjectEntry,
    PendingUpload,
    Version,
    content_version,
    read_unchanged,
    time_version,
)

# The file systems of S3, Google, Azure and Hugging Face use these names.
_TAGS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "generation")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
_MARKER = re.compile(rf"{MARKER_FOLDER}/[0-9a-f]{{32}}")  # others' files say nothing of commits
_REOPEN_S = 30.0  # arbitrary
# An empty listing of these does not tell whether the container exists.
_WITH_CONTAINERS = {"abfs", "abfss", "az", "gcs", "gs"}
# Their answers state the tags that their listings and `info` do.
_WITH_EQUAL_TAGS = {"abfs", "abfss", "az", "http", "https"}
_OTHER_NAMES = {
    "azure": "az://CONTAINER/PATH or abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "wasb": "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "wasbs": "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH",
    "oss": "oss:// with the package ossfs, or s3:// with the endpoint of the service",
}
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class FsspecStore:
    """Objects under one path of an fsspec file system."""

    def __init__(self, url: str, *, options: StoreOptions) -> None:
        self._open_url, self._options, self._lease = url, options.fsspec, options.lease
        self._grant = None if self._lease is None else self._lease.get()
        self._files, path = _opened(url, self._open_options())
        self._root = str(path).rstrip("/")
        self._url = safe_url(url).rstrip("/")
        self._scheme = url.partition("://")[0]
        _refuse_lost_parts(self._root, url)
        self._retry = options.retry
        self._lock = threading.Lock()
        self._reopened_at_s = -_REOPEN_S

    @property
    def url(self) -> str:
        return self._url

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return self._read(name, ByteRange(offset, length))[0] if length != 0 else b""

    def _read(self, name: str, wanted: ByteRange) -> tuple[bytes, set[str]]:
        """Return a range of an object, and the versions that the answers state."""
        path = self._path(name)

        def get() -> tuple[bytes, set[str]]:
            try:
                with seeing_answers() as answers:
                    found = self._files.cat_file(path, start=wanted.first, end=wanted.stop)
                content = checked(bytes(found), wanted, answers)
            except Exception as error:
                if status_of(error) != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                    raise
                content = b""
            self._check_length(path, content, wanted)
            tags = {answer.headers.get("etag", "") for answer in answers} - {""}
            return content, {content_version(tag) for tag in tags}

        return self._call(name, get)

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
        if not found:
            self._refuse_no_container()
        for path, state in found.items():
            name = str(path).removeprefix(self._root).lstrip("/")
            is_below = str(path).startswith(self._root)  # a page of a web server lists anything
            if name and is_below and name.startswith(prefix):  # a root that is a file lists itself
                yield entry_of(name, state)

    def entry(self, name: str) -> ObjectEntry | None:
        check_below(name)
        try:
            state = self._call(name, lambda: self._files.info(f"{self._root}/{name}"))
        except ObjectNotFoundError:
            return None
        return entry_of(name, state) if state.get("type") == "file" else None

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        if length == 0:
            return b""
        content, versions = self._read(entry.name, ByteRange(offset, length))
        if len(content) != length:  # checking each time would double the requests
            return read_unchanged(self, entry, offset=offset, length=length)
        if self._scheme in _WITH_EQUAL_TAGS and entry.content_version and versions:
            self._check_versions(entry, versions)
        return content

    def _check_versions(self, entry: ObjectEntry, versions: set[str]) -> None:
        if versions == {entry.version}:
            return
        found = self.entry(entry.name)
        if found is not None and found != entry:
            raise entry.changed(found, url=self.url)
        raise WrongBytesError(
            f"the answer is of another version than the object: {', '.join(sorted(versions))} "
            f"found, {entry.version} expected"
        ).at(f"{entry.name} in {self.url}")

    def list_unfinished(self) -> Iterator[PendingUpload]:
        return iter(())  # fsspec cannot list unfinished uploads

    def discard(self, unfinished: PendingUpload) -> None:
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

    def below(self, name: str) -> FsspecStore:
        inner = copy.copy(self)
        inner._root = self._path(name)  # noqa: SLF001 - of this class
        inner._url = f"{self._url}/{name}"  # noqa: SLF001 - as above
        return inner

    def close(self) -> None:
        pass

    def _call(self, name: str, request: Callable[[], _T]) -> _T:
        def attempt() -> _T:
            self._follow_lease()
            files = self._files
            try:
                with translated_fsspec(name, self.url):
                    return request()
            except StoreRefusedError as error:
                if LACKING in error.metadata or not self._is_reopened(files):
                    raise
            with translated_fsspec(name, self.url):
                return request()

        return call_with_retries(attempt, self._retry)

    def _refuse_no_container(self) -> None:
        """Tell an empty listing from one of a container that does not exist."""
        container, _, inside = self._root.partition("/")
        if self._scheme not in _WITH_CONTAINERS or not inside:
            return
        try:
            self._call("", lambda: self._files.info(container))
        except ObjectNotFoundError as error:
            raise ObjectNotFoundError(
                f"there is no container {container!r} for {self.url}; create it, or correct the "
                "URL",
                url=self.url,
            ) from error
        except WorldError:
            return  # whoever may list may not know of containers

    def _is_reopened(self, refused: fsspec.AbstractFileSystem) -> bool:
        """Open the file system again, so that it reads its credentials again, and say if it is new.

        Its files, and those of fsspec's own options, may have changed since it was opened.
        """
        if self._lease is not None:
            self._lease.renew(self._grant)
            self._follow_lease()
            return self._files is not refused
        with self._lock:
            if self._files is not refused:
                return True
            if time.monotonic() < self._reopened_at_s + _REOPEN_S:
                return False
            self._reopened_at_s = time.monotonic()
            set_conf_files(conf_dir, conf)
            self._files, _ = _opened(self._open_url, self._options, skip_instance_cache=True)
            return True

    def _follow_lease(self) -> None:
        """Open the file system again with the credentials that the lease has now."""
        if self._lease is None or (grant := self._lease.get()) is self._grant:
            return
        with self._lock:
            if grant is not self._grant:
                self._grant = grant
                options = self._open_options()
                self._files, _ = _opened(self._open_url, options, skip_instance_cache=True)

    def _open_options(self) -> Mapping[str, str | int | bool]:
        return self._options if self._grant is None else {**self._options, **self._grant.values}

    def _check_length(self, path: str, content: bytes, wanted: ByteRange) -> None:
        """Refuse other bytes than requested, as far as their number shows it."""
        if wanted.length is None or len(content) == wanted.length:
            return
        size = self._files.info(path).get("size")
        if isinstance(size, int):
            expected = max(0, min(size - wanted.first, wanted.length))
            if len(content) != expected:
                raise WrongBytesError(
                    f"the answer has other bytes than requested: {len(content)} found, for "
                    f"{wanted.header} of {size} bytes"
                )

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


def _opened(
    url: str, options: Mapping[str, str | int | bool], **how: bool
) -> tuple[fsspec.AbstractFileSystem, str]:
    scheme = url.partition("://")[0]
    try:
        options = observed_options(scheme, options)
        files, path = fsspec.core.url_to_fs(url, **options, **how)
        observe(files)
    except OSError as error:
        raise StoreUnavailableError(
            f"the store of {safe_url(url)!r} does not answer ({type(error).__name__}: "
            f"{error.strerror or 'no reason given'}); check the host name and the network"
        ) from None
    except Exception as error:  # noqa: BLE001 - packages of other protocols raise what they like
        found = f"{type(error).__name__}: {safe_url(str(error))}"
        advice = (
            "expected a path, file://, s3:// or a scheme whose fsspec package is installed"
            if scheme not in fsspec.available_protocols()
            else "give what its file system needs as StoreOptions(fsspec={…}), or as `fsspec` "
            "under `store` in the configuration of a server"
        )
        if scheme in _OTHER_NAMES:
            advice = f"expected {_OTHER_NAMES[scheme]}"
        raise BadArgumentError(
            f"{safe_url(url)!r} cannot be opened: {found}; {advice}", field="url"
        ) from None  # the cause may contain the whole URL
    return files, str(path)


def _refuse_lost_parts(root: str, url: str) -> None:
    """Refuse a URL of which the file system leaves out what follows ``#`` or ``?``."""
    last = url.rstrip("/").rpartition("/")[2]
    if ("#" in last or "?" in last) and not root.endswith(last):
        raise BadArgumentError(
            f"{safe_url(url)!r} contains # or ?, and its file system would open "
            f"{safe_url(root)!r}; rename the folder",
            field="url",
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
