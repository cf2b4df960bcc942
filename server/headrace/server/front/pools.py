"""The threads that answer calls whose request has arrived, and the queues of calls for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from headrace.server.front.lines import Lines

# Enough to answer some thousand ranks that call at once, even if only to make them retry later
# (arbitrary; each call takes a few KiB).
MAX_QUEUED_CALLS = 8192
# Bytes of their requests (arbitrary): one may have 1 MiB, most have some hundred bytes.
MAX_QUEUED_BYTES = 64 << 20

# Threads for unary calls and reflection, which wait for nothing but processor time.
_UNARY = 8


class Pool:
    """Threads with a bounded queue that is fair to callers, as `Lines` says; thread-safe.

    Args:
        name: A name for the threads.
        size: Number of threads.
        most_running: The most running calls of one caller; None for no limit.
    """

    def __init__(self, name: str, size: int, *, most_running: int | None = None) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"headrace-{name}")
        self._lock = threading.Lock()
        self._lines: Lines[Callable[[], None]] = Lines(
            most=MAX_QUEUED_CALLS, most_bytes=MAX_QUEUED_BYTES, most_of_caller=most_running or size
        )

    def submit(self, work: Callable[[], None], *, caller: str, request_bytes: int) -> bool:
        """Queue work for a thread; return False if too much waits already.

        Args:
            work: The work to do.
            caller: The caller that it is for.
            request_bytes: Bytes that it holds while it waits.
        """
        with self._lock:
            if not self._lines.append(caller, work, request_bytes):
                return False
        # While the server is stopping, gRPC cuts the call.
        with suppress(RuntimeError):
            self._threads.submit(self._run)
        return True

    def shutdown(self) -> None:
        """Wait for all threads to end; their calls must have ended."""
        self._threads.shutdown()

    def _run(self) -> None:
        # Calls that were passed over are left to the threads that run their callers' other calls.
        while (found := self._next()) is not None:
            caller, work = found
            try:
                work()
            finally:
                with self._lock:
                    self._lines.ended(caller)

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        with self._lock:
            return self._lines.pop()


class CallPools:
    """The threads of one server, separate by kind of call so that no kind starves another.

    Attributes:
        streams: The threads for streams, each of which holds one while it is open.
        unary: The threads for all other calls.
    """

    def __init__(self, max_streams: int) -> None:
        self.streams = Pool("stream", max_streams)
        self.unary = Pool("rpc", _UNARY, most_running=_UNARY // 2)

    def shutdown(self) -> None:
        """Wait for all threads to end; their calls must have ended."""
        self.streams.shutdown()
        self.unary.shutdown()
