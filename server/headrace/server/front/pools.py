"""The threads that answer calls whose request has arrived, and the queues of calls for them.

Contract:

1. Callers take turns: the next call belongs to another caller than the last one if there is one,
   and the calls of one caller run in the order of their arrival.
2. At most ``most_running`` calls of one caller run at a time, so that its long calls leave threads
   for others.
3. At most ``most_calls`` wait, with ``most_bytes`` of requests. One caller has at most half of
   either, so that it cannot keep others out.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from headrace.server.front.lines import Lines

# Enough to answer some thousand ranks that call at once, even if only to make them retry later
# (arbitrary; each call takes a few KiB).
MAX_QUEUED_CALLS = 8192
# Bytes of their requests (arbitrary): one may have 1 MiB, most have some hundred bytes.
MAX_QUEUED_BYTES = 64 << 20

# Threads for unary calls and reflection, which wait for nothing but processor time.
_UNARY = 8


class Pool:
    """Threads with a bounded queue that is fair to callers; thread-safe.

    Args:
        name: A name for the threads.
        size: Number of threads.
        most_running: The most running calls of one caller; None for no limit.
        most_calls: The most waiting calls.
        most_bytes: The most bytes of waiting requests.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        most_running: int | None = None,
        most_calls: int = MAX_QUEUED_CALLS,
        most_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"headrace-{name}")
        self._most_running = size if most_running is None else most_running
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._lines: Lines[tuple[Callable[[], None], int]] = Lines()
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    def submit(self, work: Callable[[], None], *, caller: str, request_bytes: int) -> bool:
        """Queue work for a thread; return False if too much waits already.

        Args:
            work: The work to do.
            caller: The caller that it is for.
            request_bytes: Bytes that it holds while it waits.
        """
        with self._lock:
            calls = self._lines.count_of(caller) + 1
            size = self._bytes_of[caller] + request_bytes
            if (
                2 * calls > self._most_calls
                or 2 * size > self._most_bytes
                or len(self._lines) >= self._most_calls
                or self._bytes + request_bytes > self._most_bytes
            ):
                return False
            self._lines.append(caller, (work, request_bytes))
            self._bytes += request_bytes
            self._bytes_of[caller] = size
        try:
            self._threads.submit(self._run)
        except RuntimeError:
            # The server is stopping, and gRPC cuts the call.
            return True
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
                    self._running[caller] -= 1
                    if not self._running[caller]:
                        del self._running[caller]

    def _next(self) -> tuple[str, Callable[[], None]] | None:
        """Return the next call that may run, and its caller."""
        with self._lock:
            callers = self._lines.callers()
            caller = next((one for one in callers if self._running[one] < self._most_running), None)
            if caller is None:
                return None
            _, (work, size) = self._lines.pop(caller)
            self._running[caller] += 1
            self._bytes -= size
            self._bytes_of[caller] -= size
            if not self._lines.count_of(caller):
                del self._bytes_of[caller]
        return caller, work


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
