"""A writer that is killed before its k-th operation on the store, for every k in turn.

Run as a program with a URL: for k = 1, 2, ... a process of its own appends samples to the dataset
at ``URL/k`` and sends itself SIGKILL before its k-th operation; the last one lives. Prints the
number of the last.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Iterator

import pyarrow as pa

from headrace.storage import (
    ObjectEntry,
    ObjectWriter,
    PendingUpload,
    ShardWriter,
    Store,
    Version,
    commit_dataset,
    open_store,
)

OLD_SAMPLES, NEW_SAMPLES = 1, 9
_SAMPLE_BYTES = 1 << 20  # nine of them are two parts of an upload to S3
_MOST_OPERATIONS = 100


class _Clock:
    """Counts operations, and ends the process before the one that is chosen."""

    def __init__(self, fatal: int) -> None:
        self._left = fatal
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Count an operation that is about to begin."""
        with self._lock:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def mortal(store: Store, fatal: int) -> Store:
    """Return a store whose operation ``fatal`` is the last thing that the process begins."""
    return _MortalStore(store, _Clock(fatal))


class _MortalWriter:
    """An object in the making whose every call may be the last."""

    def __init__(self, writer: ObjectWriter, clock: _Clock) -> None:
        self._writer = writer
        self._clock = clock

    def write(self, chunk: bytes) -> None:
        if len(chunk) >= _SAMPLE_BYTES:  # what Arrow writes around it sends nothing
            self._clock.tick()
        self._writer.write(chunk)

    def close(self) -> None:
        self._clock.tick()
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()


class _MortalStore:
    """A store whose every operation may be the last."""

    def __init__(self, store: Store, clock: _Clock) -> None:
        self._store = store
        self._clock = clock
        self.url = store.url

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        self._clock.tick()
        return self._store.read(name, offset=offset, length=length)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        self._clock.tick()
        return self._store.read_versioned(name)

    def write(self, name: str, content: bytes) -> None:
        self._clock.tick()
        self._store.write(name, content)

    def write_if_absent(self, name: str, content: bytes) -> None:
        self._clock.tick()
        self._store.write_if_absent(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        self._clock.tick()
        self._store.write_if_unchanged(name, content, version)

    def list(self, prefix: str = "") -> Iterator[str]:
        self._clock.tick()
        return self._store.list(prefix)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        self._clock.tick()
        return self._store.list_entries(prefix)

    def entry(self, name: str) -> ObjectEntry | None:
        self._clock.tick()
        return self._store.entry(name)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        self._clock.tick()
        return self._store.read_entry(entry, offset=offset, length=length)

    def list_unfinished(self) -> Iterator[PendingUpload]:
        self._clock.tick()
        return self._store.list_unfinished()

    def discard(self, unfinished: PendingUpload) -> None:
        self._clock.tick()
        self._store.discard(unfinished)

    def delete(self, name: str) -> None:
        self._clock.tick()
        self._store.delete(name)

    def open_writer(self, name: str) -> ObjectWriter:
        self._clock.tick()
        return _MortalWriter(self._store.open_writer(name), self._clock)

    def below(self, name: str) -> Store:
        return self._store.below(name)

    def close(self) -> None:
        self._store.close()


def _append(store: Store, name: str, sample_count: int) -> None:
    blobs = [random.Random(seed).randbytes(_SAMPLE_BYTES) for seed in range(sample_count)]
    batch = pa.RecordBatch.from_pydict({"blob": blobs})
    with ShardWriter(store, name, schema=batch.schema, compression="none") as writer:
        writer.append(batch)
        commit_dataset(store, batch.schema, [writer.close()], mode="append")


def _die_at(url: str, fatal: int) -> int:
    """Return the status of a process that is killed before its operation ``fatal``."""
    child = os.fork()
    if child == 0:
        store = open_store(f"{url}/{fatal}")
        _append(store, "old.arrow", OLD_SAMPLES)
        _append(_MortalStore(store, _Clock(fatal)), "new.arrow", NEW_SAMPLES)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    """Try every operation; return an exit code."""
    for fatal in range(1, _MOST_OPERATIONS):
        status = _die_at(sys.argv[1], fatal)
        if status == 0:
            sys.stdout.write(f"{fatal}\n")
            return 0
        if status != -signal.SIGKILL:
            return 1
    return 1


if __name__ == "__main__":
    sys.exit(main())
