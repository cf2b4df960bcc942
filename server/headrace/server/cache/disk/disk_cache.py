"""The cache's folder: stored blocks on local disk that survive restarts.

Contract:

1. Each block has a file ``FINGERPRINT/BLOCK.block``: a header with a checksum, then the block's
   stored bytes. It is written under another name and renamed, so a crash leaves either a complete
   file or one that the next start deletes.
2. The files, counted in whole pages of 4 KiB, never exceed the budget. Files found at the start
   count too, and are deleted until the rest fits.
3. A file is used only if its checksum is right, which covers its content and the block's name. An
   altered file is deleted, and the block is fetched again.
4. Only one process at a time may use the folder; others are refused.
5. A full or broken disk is logged once and not used for a minute; the server continues.
6. Only files that start with this cache's magic bytes are ever deleted or replaced.
7. One thread writes the blocks; a block is dropped if more than `_QUEUE_BYTES` wait for it.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import queue
import re
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import xxhash

from headrace.errors import ConfigurationError
from headrace.server.cache.disk.disk_index import DiskIndex

_MAGIC = b"HRCACHE1"
_HEADER = struct.Struct("<8s16sqqQ")
_PAGE_BYTES = 4096
_QUEUE_BYTES = 64 << 20
_PAUSE_S = 60.0
_FOLDER = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"(0|[1-9][0-9]{0,18})\.block")
_UNFINISHED = re.compile(r"\.[0-9a-f]{32}\.tmp")
_LOCK = "headrace.lock"

_log = logging.getLogger(__name__)


class DiskObserver(Protocol):
    """Receives what the folder reports."""

    def disk_used(self, *, is_hit: bool) -> None:
        """Count a block that was in the folder or not when it was needed."""

    def disk_held(self, *, used_bytes: int) -> None:
        """Record the bytes of the folder's blocks."""


class DiskCache:
    """Stored blocks in a folder; thread-safe.

    Args:
        folder: The folder, which is created if it does not exist.
        budget_bytes: The most bytes of its files.
        observer: Receives reports.

    Raises:
        ConfigurationError: Another process uses the folder, or it cannot be used.
    """

    def __init__(self, folder: Path, *, budget_bytes: int, observer: DiskObserver) -> None:
        self._folder = folder
        self._observer = observer
        self._index = DiskIndex(budget_bytes)
        self._lock_file = _locked(folder)
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[str, int, bytes] | None] = queue.SimpleQueue()
        self._queued = threading.Condition(self._lock)
        self._queued_bytes = 0
        self._paused_until = 0.0
        self._has_complained = False
        self._find()
        self._writer = threading.Thread(target=self._write_all, name="headrace-disk", daemon=True)
        self._writer.start()

    @property
    def used_bytes(self) -> int:
        """Bytes of the files."""
        return self._index.used

    def open(self, fingerprint: str, *, block_count: int) -> Callable[[], None]:
        """Start to serve a dataset, which then owns a part of the folder.

        Returns:
            A function that undoes this; blocks of datasets that are not served are deleted first.
        """
        with self._lock:
            self._index.open(fingerprint, block_count)

        def release() -> None:
            with self._lock:
                self._index.release(fingerprint)

        return release

    def get(self, fingerprint: str, block: int) -> bytes | None:
        """Return the verified stored bytes of a block; None if they are missing or altered."""
        with self._lock:
            is_here = self._index.read(fingerprint, block)
        content = self._read(fingerprint, block) if is_here else None
        self._observer.disk_used(is_hit=content is not None)
        return content

    def put(self, fingerprint: str, block: int, content: bytes) -> None:
        """Queue a block's stored bytes for writing, unless others are worth more."""
        with self._lock:
            if self._queued_bytes + len(content) > _QUEUE_BYTES:
                return
            self._queued_bytes += len(content)
        self._queue.put((fingerprint, block, content))

    def drop(self, fingerprint: str, block: int) -> None:
        """Delete a wrong block."""
        with self._lock:
            self._index.remove(fingerprint, block)
        _delete_ours(self._path(fingerprint, block))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued blocks are written or dropped; return whether they are."""
        with self._queued:
            return self._queued.wait_for(lambda: not self._queued_bytes, timeout_s)

    def close(self) -> None:
        """Write queued blocks, and release the folder."""
        self._queue.put(None)
        self._writer.join()
        os.close(self._lock_file)

    def _path(self, fingerprint: str, block: int) -> Path:
        return self._folder / fingerprint / f"{block}.block"

    def _find(self) -> None:
        for fingerprint, block, size in _found(self._folder):
            self._index.add(fingerprint, block, size)
        for victim in self._index.trim():
            _delete_ours(self._path(*victim))
        self._observer.disk_held(used_bytes=self.used_bytes)

    def _read(self, fingerprint: str, block: int) -> bytes | None:
        path = self._path(fingerprint, block)
        try:
            whole = path.read_bytes()
        except FileNotFoundError:
            # It was evicted in the meantime, or its thread has not written it yet.
            return None
        except OSError as error:
            # The file still counts. The block is fetched and put again, which replaces it.
            self._log_failure("read", path, error)
            return None
        content = _content(whole, fingerprint, block)
        if content is None:
            _log.warning("%s has changed since it was written; the block is fetched again", path)
            self.drop(fingerprint, block)
        return content

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            fingerprint, block, content = item
            if time.monotonic() >= self._paused_until:
                self._keep(fingerprint, block, content)
            with self._queued:
                self._queued_bytes -= len(content)
                self._queued.notify_all()

    def _keep(self, fingerprint: str, block: int, content: bytes) -> None:
        size = _pages(_HEADER.size + len(content))
        with self._lock:
            victims, has_room = self._index.make_room(fingerprint, size)
            if has_room:
                # Counted before it is written, so that the budget always holds.
                self._index.remove(fingerprint, block)
                self._index.add(fingerprint, block, size)
        for victim in victims:
            _delete_ours(self._path(*victim))
        if not has_room:
            return
        path = self._path(fingerprint, block)
        try:
            _write(path, _header(fingerprint, block, content), content)
        except OSError as error:
            with self._lock:
                self._index.remove(fingerprint, block)
            if not isinstance(error, FileExistsError):
                self._paused_until = time.monotonic() + _PAUSE_S
            self._log_failure("write", path, error)
        self._observer.disk_held(used_bytes=self.used_bytes)

    def _log_failure(self, verb: str, path: Path, error: OSError) -> None:
        if not self._has_complained:
            self._has_complained = True
            _log.warning(
                "cannot %s %s (%s); the server continues without the cache's folder where "
                "necessary. Free space on its disk, or give another folder with cache_dir",
                verb,
                path,
                error.strerror,
            )


def _locked(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_file = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"cannot use cache_dir {folder} ({error.strerror}); give a folder that this user may "
            "write to"
        ) from error
    try:
        fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock_file)
        raise ConfigurationError(
            f"cache_dir {folder} is in use by another server; give each server its own folder"
        ) from error
    return lock_file


def _found(folder: Path) -> Iterator[tuple[str, int, int]]:
    """Yield the blocks in a folder, oldest first, and delete what a crash left."""
    found = []
    for subfolder in folder.iterdir():
        if not _FOLDER.fullmatch(subfolder.name) or not subfolder.is_dir():
            continue
        for entry in os.scandir(subfolder):
            if _UNFINISHED.fullmatch(entry.name):
                _delete_ours(Path(entry.path))
            elif (name := _FILE.fullmatch(entry.name)) and _is_ours(Path(entry.path)):
                status = entry.stat(follow_symlinks=False)
                found.append((status.st_mtime_ns, subfolder.name, int(name[1]), status.st_size))
    for _, fingerprint, block, size in sorted(found):
        yield fingerprint, block, _pages(size)


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return not path.is_symlink() and file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def _delete_ours(path: Path) -> None:
    if _is_ours(path):
        with contextlib.suppress(OSError):
            path.unlink()


def _write(path: Path, header: bytes, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and not _is_ours(path):
        raise FileExistsError(
            errno.EEXIST, "a file of that name exists that does not belong to the cache"
        )
    unfinished = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with os.fdopen(
            os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
        ) as file:
            file.write(header)
            file.write(content)
        unfinished.rename(path)
    except BaseException:
        # This process has just created it.
        unfinished.unlink(missing_ok=True)
        raise


def _pages(size: int) -> int:
    return size + -size % _PAGE_BYTES


def _header(fingerprint: str, block: int, content: bytes) -> bytes:
    name = bytes.fromhex(fingerprint)
    checksum = _checksum(name, block, content)
    return _HEADER.pack(_MAGIC, name, block, len(content), checksum)


def _content(whole: bytes, fingerprint: str, block: int) -> bytes | None:
    if len(whole) < _HEADER.size:
        return None
    magic, name, number, length, checksum = _HEADER.unpack_from(whole)
    content = whole[_HEADER.size :]
    is_whole = (magic, name, number, length) == (
        _MAGIC,
        bytes.fromhex(fingerprint),
        block,
        len(content),
    )
    return content if is_whole and checksum == _checksum(name, block, content) else None


def _checksum(name: bytes, block: int, content: bytes) -> int:
    digest = xxhash.xxh3_64(name)
    digest.update(block.to_bytes(8, "little"))
    digest.update(content)
    return digest.intdigest()
