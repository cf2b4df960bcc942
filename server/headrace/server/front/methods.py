"""The threads that answer calls whose request has arrived, and the methods that use them.

Contract:

1. Callers take turns at the threads. If too many calls wait for a thread, the call ends with
   ``SERVER_BUSY``.
2. A stream gets its place before it gets a thread, and its place is free before its client learns
   the end.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from headrace.errors import ServerBusyError
from headrace.server.access.callers import Caller
from headrace.server.front.calls import Call, Method
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


_Request = TypeVar("_Request", bound=Message)

Hold = Callable[[Call], AbstractContextManager[object]]
"""Holds something for a call."""


@dataclass(frozen=True, slots=True)
class PoolMethod(Generic[_Request]):
    """A method that a thread of a pool answers.

    Attributes:
        kind: The class of its requests.
        pool: The pool of threads.
        answer: Does what a request asks for, and returns the last message, or None for none.
        finish: Sends the last message.
        check: Raises if the call must be refused before its request is received.
        admit: Holds a place for the call from its request to its end; raises if there is none.
        turn: Waits for a turn to parse the request, and holds it.
        is_open: Whether it answers unknown callers.
    """

    kind: type[_Request]
    pool: Pool
    answer: Callable[[_Request, Call], bytes | None]
    finish: Callable[[Call, bytes | None], object] = Call.answer
    check: Callable[[Call], None] = lambda _call: None
    admit: Hold = lambda _call: nullcontext()
    turn: Hold = lambda _call: nullcontext()
    is_open: bool = False

    def received(self, call: Call, request: bytes) -> None:
        """Take a place, and queue the call for a thread.

        Raises:
            HeadraceError: There is no place, or too many calls wait for a thread.
        """
        place = ExitStack()
        place.enter_context(self.admit(call))

        def respond() -> None:
            with place:
                with self.turn(call):
                    parsed = call.parsed(request, self.kind)
                last = self.answer(parsed, call)
            self.finish(call, last)

        def work() -> None:
            with place:
                # The call may have ended while it waited for this thread.
                if call.is_active:
                    call.guarded(respond)

        is_queued = False
        try:
            is_queued = self.pool.submit(work, caller=call.line, request_bytes=len(request))
        finally:
            if not is_queued:
                place.close()
        if not is_queued:
            raise ServerBusyError("too many calls are waiting for a thread; try again")


def unary(
    kind: type[_Request], pool: Pool, answer: Callable[[_Request, Caller], Message], turn: Hold
) -> Method:
    """Return a method that answers with one message; see `PoolMethod` for ``turn``."""
    return PoolMethod(
        kind,
        pool,
        lambda request, call: answer(request, call.caller).SerializeToString(),
        turn=turn,
    )


def streaming(
    kind: type[_Request],
    pool: Pool,
    messages: Callable[[_Request, Call], Iterator[bytes]],
    *,
    sender: Callable[[Call], Callable[[bytes], bool]],
    check: Callable[[Call], None],
    admit: Hold,
    turn: Hold = lambda _call: nullcontext(),
) -> Method:
    """Return a method that sends messages as long as a stream is open.

    Args:
        kind: The class of its requests.
        pool: The pool of threads, one for each stream that there may be.
        messages: Yields the messages of a call.
        sender: Returns a function that sends a message of a call, waits until it is sent, and
            returns whether more may follow.
        check: See `PoolMethod`.
        admit: See `PoolMethod`.
        turn: See `PoolMethod`.
    """

    def answer(request: _Request, call: Call) -> None:
        send = sender(call)
        # Closed however the call ends.
        with closing(cast("Any", messages(request, call))) as found:
            for message in found:
                if not send(message):
                    return

    return PoolMethod(kind, pool, answer, check=check, admit=admit, turn=turn)
