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
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast

from google.protobuf.message import Message

from headrace.errors import ServerBusyError
from headrace.server.access.callers import Caller
from headrace.server.front.calls import Call, Method
from headrace.server.front.pools import Pool

_Request = TypeVar("_Request", bound=Message)


@dataclass(frozen=True, slots=True)
class Pooled(Generic[_Request]):
    """A method that a thread of a pool answers.

    Attributes:
        kind: The class of its requests.
        pool: The pool of threads.
        answer: Answers a call.
        is_open: Whether it answers unknown callers.
    """

    kind: type[_Request]
    pool: Pool
    answer: Callable[[_Request, Call], None]
    is_open: bool = False

    def check(self, call: Call) -> None:
        """Accept every call."""

    def received(self, call: Call, request: bytes) -> None:
        """Queue the call for a thread.

        Raises:
            ServerBusyError: Too many calls wait for a thread.
        """

        def work() -> None:
            # The call may have ended while it waited for this thread.
            if call.is_wanted():
                call.guarded(lambda: self.answer(call.parsed(request, self.kind), call))

        _submit(self.pool, work, call, len(request))


@dataclass(frozen=True, slots=True)
class Streaming(Generic[_Request]):
    """A method that a thread answers with messages as long as the stream is open.

    Attributes:
        kind: The class of its requests.
        pool: The pool of threads, one for each stream that there may be.
        refuse: Raises if there is no place for the stream.
        admit: Holds a place for the stream; raises if there is none.
        messages: Yields the messages of a call.
        sender: Returns a function that sends a message of a call, waits until it is sent, and
            returns whether more may follow.
        is_open: False: it does not answer unknown callers.
    """

    kind: type[_Request]
    pool: Pool
    refuse: Callable[[Call], None]
    admit: Callable[[Call], AbstractContextManager[None]]
    messages: Callable[[_Request, Call], Iterator[bytes]]
    sender: Callable[[Call], Callable[[bytes], bool]]
    is_open: ClassVar[bool] = False

    def check(self, call: Call) -> None:
        """Refuse a call if there is no place for it.

        Raises:
            HeadraceError: There is no place.
        """
        self.refuse(call)

    def received(self, call: Call, request: bytes) -> None:
        """Take a place and a thread; there is a thread for each place.

        Raises:
            HeadraceError: There is no place.
        """
        place = ExitStack()
        place.enter_context(self.admit(call))

        def work() -> None:
            with place:
                if call.is_active:
                    call.guarded(lambda: self._respond(call, request, place))

        try:
            _submit(self.pool, work, call, len(request))
        except BaseException:
            place.close()
            raise

    def _respond(self, call: Call, request: bytes, place: ExitStack) -> None:
        send = self.sender(call)
        # Closed however the call ends, and the place is free before the client learns the end.
        with (
            place,
            closing(cast("Any", self.messages(call.parsed(request, self.kind), call))) as messages,
        ):
            for message in messages:
                if not send(message):
                    return
        call.answer(None)


def _submit(pool: Pool, work: Callable[[], None], call: Call, request_bytes: int) -> None:
    if not pool.submit(work, caller=call.whose, request_bytes=request_bytes):
        raise ServerBusyError("too many calls are waiting for a thread; try again")


def unary(
    kind: type[_Request], pool: Pool, answer: Callable[[_Request, Caller], Message]
) -> Method:
    """Return a method that answers with one message."""

    def respond(request: _Request, call: Call) -> None:
        call.answer(answer(request, call.caller).SerializeToString())

    return Pooled(kind, pool, respond)
