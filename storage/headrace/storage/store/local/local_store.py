"""A directory of this machine as a store.

Contract of writes:

1. Success: content is written to a hidden file in the same directory, flushed to disk, and renamed
   atomically, so readers see all of it or nothing.
2. Conflict: an object that must not exist yet is hard-linked to its name, which fails if the name
   is taken. One that must be unchanged is compared and replaced under a lock file.
3. Failure: nothing stays behind, also no empty folder that the store has made.
4. Crash: only a hidden file stays behind, which `list` does not show.

A link in the directory may lead to another place in it, but not out of it.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import hashlib
import os
import re
import stat
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

from headrace.errors import BadArgumentError, CommitConflictError, StoreRefusedError
from headrace.storage.store.local.fence import Fence, LeadsOutError
from headrace.storage.store.local.file_lock import locked
from headrace.storage.store.names import check_below, check_name
from headrace.storage.store.os_errors import translated
from headrace.storage.store.store import (
    ObjectEntry,
    PendingUpload,
    Version,
    read_unchanged,
    time_version,
)

_HIDDEN = re.compile(r"\.(.+)\.[0-9a-f]{32}")
_LOCK = ".headrace.lock"
_LOCK_DEADLINE_S = 30.0  # the lock is held for one small write
_translated = partial(translated, advice=f"check owner and mode, as user {os.getuid()}")
_TRIES = 5  # arbitrary
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class LocalStore:
    """A directory, which is created by the first write."""

    def __init__(self, url: str) -> None:
        self._root = Path(_path_of(url)).absolute()
        self._root_text = str(self._root)
        self._made: set[Path] = set()
        self._fence = Fence(self._root_text)

    @property
    def url(self) -> str:
        return self._root_text

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        check_name(name)
        # With plain system calls and no context manager: blocks are read here, and a file object
        # costs as much as a small read.
        try:
            descriptor = self._fence.open(f"{self._root_text}/{name}")
            try:
                if length is None:
                    length = max(0, os.fstat(descriptor).st_size - offset)
                return _read_at(descriptor, offset, length)
            finally:
                os.close(descriptor)
        except LeadsOutError:
            raise self._leads_out(name) from None
        except OSError as error:
            with _translated(name, self.url):
                raise error from None

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        content = self.read(name)
        return content, _version_of(content)

    def write(self, name: str, content: bytes) -> None:
        writer = self.open_writer(name)
        try:
            writer.write(content)
            writer.close()
        finally:
            writer.abort()

    def write_if_absent(self, name: str, content: bytes) -> None:
        writer = self.open_writer(name)
        try:
            writer.write(content)
            writer.close_if_absent()
        finally:
            writer.abort()

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        with _translated(name, self.url), self._lock():
            _, found = self.read_versioned(name)
            if found != version:
                raise _conflict(name, self.url)
            self.write(name, content)

    def list(self, prefix: str = "") -> Iterator[str]:
        for _, name, file in self._files(prefix):
            if not file.startswith("."):
                yield name

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        for path, name, file in self._files(prefix):
            if not file.startswith("."):
                entry = self._entry(name, path)
                if entry is not None:
                    yield entry

    def entry(self, name: str) -> ObjectEntry | None:
        """Return the entry of a file or of a link to a file, but not of a link to a directory."""
        check_below(name)
        path = self._root / name
        if not self._fence.has(path):
            raise self._leads_out(name)
        return self._entry(name, path)

    def _entry(self, name: str, path: str | Path) -> ObjectEntry | None:
        """Return the entry of a listed file, also of one that reading refuses: others are read."""
        with _translated(name, self.url):
            try:
                state = os.stat(path)  # noqa: PTH116 - a `Path` takes longer than the call
            except (FileNotFoundError, NotADirectoryError):
                return None  # also if it was removed after it was listed
        if not stat.S_ISREG(state.st_mode):
            return None
        version = time_version(state.st_mtime_ns)
        return ObjectEntry(name, state.st_size, version, state.st_mtime)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        return read_unchanged(self, entry, offset=offset, length=length)

    def list_unfinished(self) -> Iterator[PendingUpload]:
        for path, name, file in self._files(""):
            hidden = _HIDDEN.fullmatch(file)
            if hidden is not None:
                with contextlib.suppress(FileNotFoundError):
                    state = Path(path).stat()
                    wanted = name.removesuffix(file) + hidden[1]
                    yield PendingUpload(wanted, name, state.st_size, state.st_mtime)

    def discard(self, unfinished: PendingUpload) -> None:
        self.delete(unfinished.key)

    def delete(self, name: str) -> None:
        with _translated(name, self.url):
            path = self._path(name)
            path.unlink(missing_ok=True)
            self.prune(path.parent)

    def open_writer(self, name: str) -> LocalWriter:
        with _translated(name, self.url):
            return LocalWriter(self._path(name), store=self)

    def below(self, name: str) -> LocalStore:
        path = self._path(f"{name}/headrace.json").parent
        inner = copy.copy(self)
        inner._root, inner._root_text = path, str(path)  # noqa: SLF001 - of this class
        inner._made = set()  # noqa: SLF001 - as above
        return inner

    def close(self) -> None:
        pass

    def _leads_out(self, name: str) -> StoreRefusedError:
        return StoreRefusedError(
            f"{name} in {self.url} is behind a link that leads out of that folder, and such links "
            "are not followed, because whoever may write there could name any file of this "
            "machine; put the file there, or give the URL of the folder that it is in",
            url=self.url,
            name=name,
        )

    def _files(self, prefix: str) -> Iterator[tuple[str, str, str]]:
        """Yield the path, the name and the last part of the name of each file.

        These are texts, since a table may have 100,000 files.
        """
        with _translated(prefix, self.url):
            for folder, folders, files in os.walk(self._root_text, onerror=_raise_hidden):
                inside = folder.removeprefix(self._root_text).strip("/")
                before = f"{inside}/" if inside else ""
                # A folder elsewhere is of no concern, even if it cannot be read.
                folders[:] = [name for name in folders if _may_hold(f"{before}{name}", prefix)]
                for file in files:
                    name = f"{before}{file}"
                    if name.startswith(prefix):
                        yield f"{folder}/{file}", name, file

    def make_file(self, path: Path) -> BinaryIO:
        """Create a file, and the folders that it is in.

        Raises:
            OSError: It cannot be created; folders that this has made are removed again.
        """
        for left in reversed(range(_TRIES)):
            try:
                self._make_folder(path.parent)
                return path.open("xb")
            except FileNotFoundError:  # another writer has just removed the folder
                if not left:
                    raise
            except BaseException:
                self.prune(path.parent)
                raise
        raise AssertionError  # unreachable

    def prune(self, folder: Path) -> None:
        """Remove an empty folder in the root, or one that this store has made, and its parents."""
        for place in (folder, *folder.parents):
            if place not in self._made and self._root not in place.parents:
                return
            try:
                place.rmdir()
            except OSError:
                return
            self._made.discard(place)

    def _make_folder(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for place in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another writer was faster
                place.mkdir()
                self._made.add(place)

    def _path(self, name: str) -> Path:
        check_name(name)
        path = self._root / name
        if not self._fence.has(path.parent):
            raise self._leads_out(name)
        return path

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self._make_folder(self._root)
        with locked(self._root / _LOCK, deadline_s=_LOCK_DEADLINE_S):
            yield


class LocalWriter:
    """A file that gets its name when it is closed."""

    def __init__(self, path: Path, *, store: LocalStore) -> None:
        self._path = path
        self._store = store
        self._name = path.relative_to(store.url).as_posix()
        self._hidden = _hidden_name(path)
        self._file = store.make_file(self._hidden)

    def write(self, chunk: bytes) -> None:
        with _translated(self._name, self._store.url):
            self._file.write(chunk)

    def close(self) -> None:
        with _translated(self._name, self._store.url):
            self._flush()
            self._hidden.replace(self._path)
            _flush_directory(self._path.parent)

    def close_if_absent(self) -> None:
        """Close the file under its name if the name is free.

        Raises:
            CommitConflictError: The name is taken.
        """
        with _translated(self._name, self._store.url):
            self._flush()
            try:
                _take_name(self._hidden, self._path)
            except FileExistsError as error:
                raise _conflict(self._name, self._store.url) from error
            _flush_directory(self._path.parent)

    def _flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):  # after `close`
            self._hidden.unlink()
            self._store.prune(self._path.parent)


def _path_of(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    # Not parsed as a URL, because # and ? are characters of paths.
    host, slash, path = rest.partition("/")
    if scheme != "file" or host not in {"", "localhost"} or not slash:
        raise BadArgumentError(f"{url!r} is not a local path, expected file:///path", field="url")
    return unquote(f"/{path}")


def _raise_hidden(error: OSError) -> None:
    # A missing root has no files, but a directory that cannot be read may have some; except what
    # fsck keeps at the top of a volume for root.
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return
    if Path(error.filename or "").name != "lost+found":
        raise error


def _may_hold(folder: str, prefix: str) -> bool:
    """Return whether names in a folder may start with a prefix."""
    inside = f"{folder}/"
    return inside.startswith(prefix) or prefix.startswith(inside)


def _read_at(descriptor: int, offset: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.pread(descriptor, length, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _version_of(content: bytes) -> Version:
    return Version(hashlib.blake2b(content, digest_size=16).hexdigest())


def _hidden_name(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")


def _take_name(hidden: Path, path: Path) -> None:
    try:
        os.link(hidden, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Without hard links (some FUSE mounts), exclusive creation decides who wins; for a moment
        # readers may see the object incomplete.
        content = hidden.read_bytes()
        file = path.open("xb")
        try:
            with file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            # Otherwise a part would stay under the name.
            path.unlink(missing_ok=True)
            raise


def _flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems cannot do this, and do not need it.
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _conflict(name: str, url: str) -> CommitConflictError:
    return CommitConflictError(
        f"another writer changed {name} in {url} in the meantime; nothing was changed, try again",
        url=url,
        name=name,
    )
