"""The processes in which registered transforms run.

Contract of a call:

1. Success: the batch is sent to an idle process, which returns the answer.
2. Waiting: the generator yields every ``TICK_S``, so that its caller can check for cancellation.
3. Failure of the function: its error is raised as `StageFailedError`; the process stays.
4. Crash and time-out: the process is killed if it is still alive; `StageFailedError` says what
   happened. The next call starts another process.
5. Cancel: closing the generator kills the process of a call in progress.
6. `close` kills all processes; they also end by themselves when the server ends.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from headrace.errors import BadArgumentError, ConfigurationError, StageFailedError
from headrace.server.stages.transforms import transform_worker
from headrace.server.stages.transforms.transform_config import TransformConfig
from headrace.server.stages.transforms.transform_worker import (
    DONE,
    HEAD,
    KEY_COLUMN,
    batch_bytes,
    batch_from,
)

TICK_S = 0.1

# Importing what a transform needs may take longer than one batch.
_START_TIMEOUT_S = 60.0
# The most calls that may wait ahead of a call.
_QUEUE_CALLS = 10
_END_TIMEOUT_S = 5.0
_CHUNK_BYTES = 1 << 20

Waiting = Generator[None, None, pa.RecordBatch]


class _Worker:
    """One process."""

    def __init__(self, config: TransformConfig) -> None:
        self.is_ready = False
        self._peer, theirs = socket.socketpair()
        read_end, self._life = os.pipe()
        arguments = [config.module, config.function, str(theirs.fileno()), str(read_end)]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the operator's own registration
                [sys.executable, transform_worker.__file__, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), read_end],
            )
        finally:
            theirs.close()
            os.close(read_end)

    def send(self, content: bytes, deadline: float) -> Generator[None, None, None]:
        """Send one message."""
        for part in (HEAD.pack(DONE, len(content)), content):
            left = memoryview(part)
            while left:
                try:
                    self._peer.settimeout(TICK_S)
                    left = left[self._peer.send(left[:_CHUNK_BYTES]) :]
                except TimeoutError:
                    self._check(deadline)
                    yield

    def receive(
        self, deadline: float, limit: int, claim: Callable[[int], None] = lambda _: None
    ) -> Generator[None, None, tuple[bytes, bytes]]:
        """Wait for one message of at most ``limit`` bytes, after claiming memory for it."""
        kind, length = HEAD.unpack((yield from self._exactly(HEAD.size, deadline)))
        if length > limit:
            raise ConnectionError(f"an answer of {length} bytes, more than {limit}")
        claim(length)
        return kind, (yield from self._exactly(length, deadline))

    def end(self) -> str:
        """Kill the process and say how it ended, if it had already ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            # A process that closed its socket is usually about to end.
            self._process.wait(TICK_S)
        code = self._process.poll()
        self._process.kill()
        self._process.wait(_END_TIMEOUT_S)
        self._peer.close()
        os.close(self._life)
        if code is None:
            return "closed its connection"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"

    def _exactly(self, length: int, deadline: float) -> Generator[None, None, bytes]:
        content = bytearray(length)
        left = memoryview(content)
        while left:
            try:
                self._peer.settimeout(TICK_S)
                count = self._peer.recv_into(left)
            except TimeoutError:
                self._check(deadline)
                yield
                continue
            if not count:
                raise ConnectionError
            left = left[count:]
        return bytes(content)

    def _check(self, deadline: float) -> None:
        if time.monotonic() >= deadline:
            raise _LateError


def check_transforms(configs: Iterable[TransformConfig]) -> None:
    """Check in other processes that the functions can be imported, and take what they will get.

    Raises:
        ConfigurationError: One cannot, or does not.
    """
    for config in configs:
        command = [sys.executable, transform_worker.__file__, config.module, config.function]
        try:
            done = subprocess.run(  # noqa: S603 - the operator's own registration
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_START_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said = f"its import took longer than {_START_TIMEOUT_S:g} s"
        else:
            if not done.returncode:
                continue
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            said = last or f"its process ended with exit code {done.returncode}"
        raise ConfigurationError(
            f"the transform {config.title} cannot use {config.module}:{config.function}: {said}; "
            "expected a function of (batch, keys) that can be imported in the working folder "
            f"{Path.cwd()}"
        )


class _LateError(Exception):
    """The deadline of a call has passed."""


class TransformPool:
    """Run registered transforms, each in its own processes; safe for several threads.

    Args:
        configs: The transforms by name.
        workers: The maximum number of processes per transform.
        timeout_s: The most seconds that one batch may take.
        max_batch_bytes: The largest batch in bytes, including some room for its description.
    """

    def __init__(
        self,
        configs: Mapping[str, TransformConfig],
        *,
        workers: int,
        timeout_s: float,
        max_batch_bytes: int,
    ) -> None:
        self._configs = configs
        self._workers = workers
        self._timeout_s = timeout_s
        self._limit = max_batch_bytes + (1 << 20)
        self._changed = threading.Condition()
        self._idle: dict[str, list[_Worker]] = {name: [] for name in configs}
        self._counts = dict.fromkeys(configs, 0)
        self._schemas: dict[tuple[str, bytes], pa.Schema] = {}
        self._closed = False

    @property
    def configs(self) -> Mapping[str, TransformConfig]:
        """Return the transforms by name."""
        return self._configs

    def config(self, name: str) -> TransformConfig:
        """Return a registered transform.

        Raises:
            BadArgumentError: There is no transform of that name.
        """
        if name not in self._configs:
            known = ", ".join(sorted(self._configs)) or "none"
            raise BadArgumentError(
                f"there is no transform {name[:100]!r} here; registered transforms: {known}",
                field="stages",
            )
        return self._configs[name]

    def schema(self, name: str, before: pa.Schema) -> pa.Schema:
        """Return the columns that a transform makes, by calling it with a batch without rows.

        Raises:
            StageFailedError: It fails for that batch.
        """
        key = (name, before.serialize().to_pybytes())
        known = self._schemas.get(key)
        if known is None:
            columns = [pa.array([], field.type) for field in before]
            empty = pa.RecordBatch.from_arrays(columns, schema=before)
            known = _finish(self.run(name, empty, pa.array([], pa.uint64()))).schema
            if len(self._schemas) < _MAX_SCHEMAS:
                self._schemas[key] = known
        return known

    def run(
        self,
        name: str,
        batch: pa.RecordBatch,
        keys: pa.UInt64Array,
        *,
        claim: Callable[[int], None] = lambda _: None,
    ) -> Waiting:
        """Transform a batch, according to the contract above.

        Args:
            name: The name of the transform.
            batch: The batch to pass to it.
            keys: ``(rows,)``: the seed for random choices about each row.
            claim: Is called with the size of the answer in bytes before it is received. An error
                that it raises ends the process, as any other error in a call does.

        Raises:
            StageFailedError: It fails, crashes or takes too long.
        """
        content = batch_bytes(batch.append_column(pa.field(KEY_COLUMN, pa.uint64()), keys))
        worker = yield from self._take(name)
        try:
            kind, answer = yield from self._ask(name, worker, content, claim)
        except BaseException:
            self._give(name, None)
            raise
        self._give(name, worker)
        if kind != DONE:
            raise self._failure(name, answer.decode(errors="replace"))
        return batch_from(answer)

    def close(self) -> None:
        """Kill all idle processes; the others end with their calls."""
        with self._changed:
            self._closed = True
            workers = [worker for idle in self._idle.values() for worker in idle]
            for idle in self._idle.values():
                idle.clear()
            self._changed.notify_all()
        for worker in workers:
            worker.end()

    def _ask(
        self, name: str, worker: _Worker, content: bytes, claim: Callable[[int], None]
    ) -> Generator[None, None, tuple[bytes, bytes]]:
        try:
            if not worker.is_ready:
                started = time.monotonic() + max(_START_TIMEOUT_S, self._timeout_s)
                kind, answer = yield from worker.receive(started, self._limit)
                if kind != DONE:
                    raise self._failure(name, answer.decode(errors="replace"))  # noqa: TRY301 - the process ends, as after any failure here
                worker.is_ready = True
            deadline = time.monotonic() + self._timeout_s
            yield from worker.send(content, deadline)
            return (yield from worker.receive(deadline, self._limit, claim))
        except _LateError:
            worker.end()
            raise self._failure(name, f"it took longer than {self._timeout_s:g} s") from None
        except OSError as error:
            why = worker.end()
            raise self._failure(name, f"its process {why} {error}".rstrip()) from error
        except BaseException:
            worker.end()
            raise

    def _take(self, name: str) -> Generator[None, None, _Worker]:
        deadline = time.monotonic() + _QUEUE_CALLS * self._timeout_s
        while True:
            with self._changed:
                if self._closed:
                    raise self._failure(name, "the server is shutting down")
                if self._idle[name]:
                    return self._idle[name].pop()
                if self._counts[name] < self._workers:
                    self._counts[name] += 1
                    break
                self._changed.wait(TICK_S)
            if time.monotonic() >= deadline:
                raise self._failure(name, "all of its processes were busy for too long")
            yield
        try:
            return _Worker(self.config(name))
        except BaseException:
            self._give(name, None)
            raise

    def _give(self, name: str, worker: _Worker | None) -> None:
        with self._changed:
            if worker is None:
                self._counts[name] -= 1
            elif not self._closed:
                self._idle[name].append(worker)
                worker = None
            self._changed.notify()
        if worker is not None:
            worker.end()

    def _failure(self, name: str, why: str) -> StageFailedError:
        title = self._configs[name].title
        return StageFailedError(f"the transform {title} failed: {why}", transform=title)


# Each entry takes a few KiB; there is one per kind of request.
_MAX_SCHEMAS = 1024


def _finish(waiting: Waiting) -> pa.RecordBatch:
    try:
        while True:
            next(waiting)
    except StopIteration as end:
        made: pa.RecordBatch = end.value
        return made
