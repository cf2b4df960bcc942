"""Methods whose calls are answered by the threads of a pool.

Contract:

1. Callers take turns at the threads. If too many calls wait for a thread, the call ends with
   ``SERVER_BUSY``.
2. A stream gets its place before it gets a thread, and its place is free before its client learns
   the end.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from google.protobuf.message import Message

from headrace.errors import ServerBusyError
from headrace.server.access.callers import Caller
from headrace.server.front.calls import Call, Method
from headrace.server.front.pools import Pool

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
