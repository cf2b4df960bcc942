"""The threads that answer calls whose request is there, and how many may queue for them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Enough to refuse some thousand ranks that come at once in order, with the time to wait (arbitrary;
# each takes some KiB).
MAX_QUEUED_CALLS = 8192
# Their requests: one may have 1 MiB, most have some hundred bytes (arbitrary).
MAX_QUEUED_BYTES = 64 << 20

# Streams past the limit are told so; that takes a thread for a moment.
_REFUSALS = 4
# Unary calls and reflection; none of them waits for anything but processor time.
_UNARY = 8


class Pool:
    """Threads with a bounded queue; safe for several threads.

    Args:
        name: For the threads.
        size: How many.
        most_calls: That wait for one.
        most_bytes: Of the requests that wait, together.
    """

    def __init__(
        self,
        name: str,
        size: int,
        *,
        most_calls: int = MAX_QUEUED_CALLS,
        most_bytes: int = MAX_QUEUED_BYTES,
    ) -> None:
        self._threads = ThreadPoolExecutor(size, thread_name_prefix=f"headrace-{name}")
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._calls = self._bytes = 0

    def submit(self, work: Callable[[], None], *, request_bytes: int) -> bool:
        """Have a thread do something; return False where too many others wait."""
        with self._lock:
            if self._calls >= self._most_calls or self._bytes + request_bytes > self._most_bytes:
                return False
            self._calls += 1
            self._bytes += request_bytes
        try:
            self._threads.submit(self._run, work, request_bytes)
        except RuntimeError:
            # The server ends, and gRPC cuts the call.
            return True
        return True

    def shutdown(self) -> None:
        """Wait for all threads to end; their calls must have been cut."""
        self._threads.shutdown()

    def _run(self, work: Callable[[], None], request_bytes: int) -> None:
        with self._lock:
            self._calls -= 1
            self._bytes -= request_bytes
        work()


class CallPools:
    """The threads of one server, apart by kind, so that no kind of call can starve another.

    Attributes:
        streams: For streams, each of which holds a thread while it is open, and for the refusals
            of those too many.
        unary: For all other calls.
    """

    def __init__(self, max_streams: int) -> None:
        self.streams = Pool("stream", max_streams + _REFUSALS)
        self.unary = Pool("rpc", _UNARY)

    def shutdown(self) -> None:
        """Wait for all threads to end; their calls must have been cut."""
        self.streams.shutdown()
        self.unary.shutdown()
