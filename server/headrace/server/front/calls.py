"""A call from its headers to its end.

Contract:

1. Headers: the caller is identified at once, from metadata or certificate, and the call waits for
   its turn in its caller's line (`WireServer`). A caller without access is refused before its
   request is received. None of this holds a thread. The call of one that floods the server is set
   aside for a while before more is done (`Floods`).
2. Request: it must arrive within ``request_timeout_s``, or the call ends with ``REQUEST_MISSING``.
   If more than `MOST_WAITING` calls wait for their requests, the one that has waited longest ends
   with ``SERVER_BUSY``. A request that cannot be parsed is ``REQUEST_MALFORMED``.
3. Work: a thread of the method's pool then takes the call; callers take turns at the threads. If
   too many calls wait for one, the call ends with ``SERVER_BUSY``. A stream gets its place before
   it gets a thread.
4. End: answers and failures are sent without waiting. A client that does not take them is cut
   after as long.
5. Every failure is one of `headrace.errors`, and is counted; anything else that is raised is a bug
   of ours, and the client is told no details.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import DecodeError, Message

from headrace.errors import (
    HeadraceError,
    InternalError,
    RequestMalformedError,
    RequestMissingError,
    ServerBusyError,
)
from headrace.server.access.callers import ANYBODY, Access, Caller, host_of, subjects_of
from headrace.server.front.doorkeeper import Doorkeeper
from headrace.server.front.floods import Floods
from headrace.server.front.gate import Gate
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.server.front.pools import Pool
from headrace.server.front.status import Failure, failure_of, internal_failure
from headrace.server.front.tallied import TalliedLog
from headrace.server.front.waiting import Waiting
from headrace.server.front.wire import WireCall
from headrace.server.front.wire_server import Arrivals

MOST_WAITING = 512
"""Calls whose request has not come, or whose answer was not taken; each may hold 1 MiB."""

CROWD = 1024
"""Calls of a caller that wait for their turn: twice as many as a herd of 500 clients has."""

_log = logging.getLogger(__name__)

_Request = TypeVar("_Request", bound=Message)


class Failures(Protocol):
    """Counts failed calls."""

    def call_failed(self, reason: str) -> None:
        """Count one."""


class Method(Protocol):
    """One method of a service."""

    @property
    def is_open(self) -> bool:
        """Whether it answers callers that are not known."""

    def check(self, call: Call) -> None:
        """Refuse a call before its request is received, if it must be; does not wait."""

    def received(self, call: Call, request: bytes) -> None:
        """Take a request; the thread that serves all calls asks, so it may not wait."""


@dataclass(frozen=True, slots=True)
class Desk:
    """What all calls of a server share.

    Attributes:
        access: Identifies callers.
        failures: Counts those that fail.
        waiting: Those that wait for their client.
        floods: Those that their client has reset, and those of callers who bring many of them.
        door: Is told whose connections have calls.
        gate: Is told of the calls of those who bring far too many.
        malformed: Says that requests were not what they must be.
        places: Where the datasets lie, which callers on other machines are not told.
        hidden: Says what they were not told.
    """

    access: Access
    failures: Failures
    waiting: Waiting
    floods: Floods
    door: Doorkeeper
    gate: Gate
    malformed: TalliedLog
    places: DatasetPlaces
    hidden: TalliedLog


class Call:
    """One call; the contract is above.

    Args:
        name: The name of its method.
        method: Answers it.
        desk: Shared with all other calls.
        wire: The call as gRPC has it.

    Attributes:
        caller: Who calls; `ANYBODY` if anybody may, or if the caller is not known.
    """

    def __init__(self, name: str, method: Method, desk: Desk, wire: WireCall) -> None:
        self.name = name
        self._method = method
        self._desk = desk
        self._wire = wire
        self._request_count = 0
        self._is_wanting = True
        self.caller: Caller = ANYBODY
        # Found when the headers were read, and raised when the call has its turn.
        self._refusal: HeadraceError | None = None
        if not method.is_open:
            try:
                self.caller = self.known_caller()
            except HeadraceError as error:
                self._refusal = error

    @property
    def line(self) -> str:
        """The line that the call waits in; empty if it needs no turn."""
        return "" if self._method.is_open else self.whose

    def may_wait(self, waiting: int) -> bool:
        """Return whether the call may wait; `waiting` calls of its caller do already."""
        if waiting < CROWD and not self._desk.floods.is_flooding(self.whose):
            return True
        return self._desk.gate.came(self.peer)

    def no_room(self) -> bool:
        """Return whether the call goes on, to be told that its line is full; else it is cut."""
        if self._desk.floods.is_flooding(self.whose):
            return False
        self._refusal = ServerBusyError("too many calls are waiting for their turn; try again")
        return True

    def arrived(self) -> None:
        """Ask for the request, or refuse it."""
        self.guarded(self._admit)

    def received(self, request: bytes) -> None:
        """Give the request to the method."""
        self._request_count += 1
        self._is_wanting = False
        self._desk.waiting.remove(self)
        # Thousands of calls that were reset at once may arrive in a moment.
        if self.is_wanted():
            self.guarded(lambda: self._method.received(self, request))

    def requests_ended(self) -> None:
        """End the call: without an error if it had a request, or if its client has reset it."""
        if self._request_count:
            self.answer(None)
        elif self.is_wanted():
            self.fail(RequestMalformedError("the call has no request; send one"))

    def receive_another(self) -> None:
        """Wait for one more request."""
        self._is_wanting = True
        self._desk.waiting.add(self)
        self._wire.receive()

    def guarded(self, work: Callable[[], None]) -> None:
        """Do something; what it raises becomes the end of the call."""
        try:
            work()
        except HeadraceError as error:
            self.fail(error)
        except Exception:  # noqa: BLE001 - the servicer's boundary
            _log.exception("%s failed; this is a bug of headrace", self.name)
            self._desk.failures.call_failed(InternalError.reason)
            self.refuse(internal_failure())

    def parsed(self, request: bytes, kind: type[_Request]) -> _Request:
        """Return the request.

        Raises:
            RequestMalformedError: The bytes are no such request.
        """
        try:
            return kind.FromString(request)
        except DecodeError:
            self._desk.malformed.add(f"{self.name} from {self.host}")
            raise RequestMalformedError(
                f"the {len(request)} bytes of the request are not a {kind.DESCRIPTOR.full_name}; "
                "send one made with the stubs of this version"
            ) from None

    @property
    def is_active(self) -> bool:
        """Whether somebody still waits for an answer."""
        return self._wire.is_active

    def is_wanted(self) -> bool:
        """Return whether the client still waits for its first answer; else it reset the call."""
        if self.is_active:
            return True
        self._desk.floods.over(self.whose, self)
        return False

    @property
    def whose(self) -> str:
        """Whose turn it is when the call has its own: the caller, or an address if nobody's."""
        return self.caller.name or self.host

    @property
    def peer(self) -> str:
        """The client's address as gRPC has it."""
        return self._wire.peer()

    @property
    def host(self) -> str:
        """The client's address without its port; all clients of a unix socket share one."""
        return host_of(self._wire.peer())

    @property
    def metadata(self) -> Sequence[tuple[str, str | bytes]]:
        """What came with the headers."""
        return self._wire.metadata

    def send(self, message: bytes) -> bool:
        """Send a message, and wait until it is out; return whether more may follow."""
        return self._wire.send(message)

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message without waiting; the next may follow when ``on_sent`` has been called.

        Returns:
            Whether somebody waits for it; else ``on_sent`` is never called.
        """
        return self._wire.send_soon(message, on_sent)

    def answer(self, message: bytes | None) -> None:
        """End the call without an error, with a last message or none."""
        self._wait_until_taken(self._wire.answer(message))

    def fail(self, error: HeadraceError) -> None:
        """End the call with an error, without places of this machine if it came from another."""
        self._desk.failures.call_failed(error.reason)
        told = error if self.host == "unix" else self._desk.places.without(error)
        if told is not error:
            self._desk.hidden.add(f"{self.name}: {error.message}")
        self.refuse(failure_of(told))

    def refuse(self, failure: Failure) -> None:
        """End the call with a failure that is counted elsewhere, or is none of ours."""
        self._wait_until_taken(self._wire.fail(failure))

    def cancel(self) -> None:
        """Cut the call."""
        self._wire.cancel()

    def callers_changed(self) -> int:
        """Return how often the server's callers have changed, up to now."""
        return self._desk.access.changes()

    def known_caller(self) -> Caller:
        """Return the caller, according to the callers file as it is now.

        Raises:
            HeadraceError: See `Access.caller`.
        """
        return self._desk.access.caller(
            self._wire.metadata, lambda: subjects_of(self._wire.auth_context())
        )

    def on_end(self, callback: Callable[[], None]) -> bool:
        """Have something called when the last of the call is out; return False if it already is."""
        return self._wire.on_end(callback)

    def give_up(self, *, for_room: bool) -> None:
        """End a call that waits for its client; it waits for nothing any more."""
        if not (self._is_wanting and self.is_active):
            self.cancel()
        elif self._request_count:
            self._wire.answer(None)
        else:
            error = self._too_many() if for_room else self._too_late()
            self._desk.failures.call_failed(error.reason)
            # Nothing was sent before it, so it goes out whatever the client lets through.
            self._wire.fail(failure_of(error))

    def _too_many(self) -> HeadraceError:
        return ServerBusyError("too many calls are waiting for their request; try again")

    def _too_late(self) -> HeadraceError:
        return RequestMissingError(
            f"the request did not arrive within {self._desk.waiting.timeout_s:g} s of the call's "
            "headers; try again"
        )

    def _admit(self) -> None:
        peer = self.peer
        self._desk.door.call_began(peer)
        if not self.on_end(lambda: self._desk.door.call_ended(peer)):
            self._desk.door.call_ended(peer)
        if self._refusal is not None:
            raise self._refusal
        if not self._method.is_open and self._desk.floods.is_flooding(self.whose):
            self._desk.floods.set_aside(self.whose, self._go_on)
        else:
            self._ask()

    def _go_on(self) -> bool:
        """Go on with a call that was set aside; return whether somebody still waits for it."""
        if not self.is_active:
            self._desk.floods.over(self.whose)
            return False
        self.guarded(self._ask)
        return True

    def _ask(self) -> None:
        self._method.check(self)
        self._desk.waiting.add(self)
        if not self.on_end(self._ended):
            self._ended()
            return
        self._wire.receive()

    def _ended(self) -> None:
        self._desk.waiting.remove(self)

    def _wait_until_taken(self, is_awaited: bool) -> None:  # noqa: FBT001 - what was just returned
        if not is_awaited:
            return
        self._is_wanting = False
        self._desk.waiting.add(self)
        # It may have been over before it was added.
        if not self.on_end(self._ended):
            self._ended()


@dataclass(frozen=True, slots=True)
class Pooled(Generic[_Request]):
    """A method that a thread of a pool answers.

    Attributes:
        kind: The class of its request.
        pool: Has the threads.
        answer: Answers.
        is_open: Whether it answers callers that are not known.
    """

    kind: type[_Request]
    pool: Pool
    answer: Callable[[_Request, Call], None]
    is_open: bool = False

    def check(self, call: Call) -> None:
        """Refuse none."""

    def received(self, call: Call, request: bytes) -> None:
        """Give the call to a thread.

        Raises:
            ServerBusyError: Too many wait for one.
        """

        def work() -> None:
            # The call may have been cut while it waited for this thread.
            if call.is_wanted():
                call.guarded(lambda: self.answer(call.parsed(request, self.kind), call))

        _submit(self.pool, work, call, len(request))


@dataclass(frozen=True, slots=True)
class Streaming(Generic[_Request]):
    """A method that a thread answers with messages, for as long as the stream is open.

    Attributes:
        kind: The class of its request.
        pool: Has the threads, as many as there may be streams.
        refuse: Raises where there is no place for the stream.
        admit: Holds a place for the stream; raises where there is none.
        messages: Answers.
        sender: Gives what sends the messages of a call, waits until each is out, and says whether
            more may follow.
        is_open: It answers no callers that are not known.
    """

    kind: type[_Request]
    pool: Pool
    refuse: Callable[[Call], None]
    admit: Callable[[Call], AbstractContextManager[None]]
    messages: Callable[[_Request, Call], Iterator[bytes]]
    sender: Callable[[Call], Callable[[bytes], bool]]
    is_open: ClassVar[bool] = False

    def check(self, call: Call) -> None:
        """Refuse a call for which there is no place now.

        Raises:
            HeadraceError: Why.
        """
        self.refuse(call)

    def received(self, call: Call, request: bytes) -> None:
        """Take a place and a thread, of which there are as many.

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
        # It is closed however the call ends, and the place is free before the client is told.
        with closing(cast("Any", _until_end(self._answer(call, request), place))) as messages:
            send = self.sender(call)
            for message in messages:
                if not send(message):
                    return
            call.answer(None)

    def _answer(self, call: Call, request: bytes) -> Iterator[bytes]:
        yield from self.messages(call.parsed(request, self.kind), call)


def _until_end(messages: Iterator[bytes], place: ExitStack) -> Iterator[bytes]:
    with place:
        yield from messages


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


def arrivals_of(methods: Mapping[str, Method], desk: Desk) -> Arrivals:
    """Return what makes the calls of methods, and of those that are not there.

    Args:
        methods: The methods by their full names, such as ``/package.Service/Method``.
        desk: Shared by their calls.
    """
    return {
        "": _Unknown,
        **{name: partial(Call, name, method, desk) for name, method in methods.items()},
    }


class _Unknown:
    """A call of a method that is not there."""

    line = ""

    def __init__(self, wire: WireCall) -> None:
        self._wire = wire

    def may_wait(self, waiting: int) -> bool:  # noqa: ARG002 - it needs no turn
        return True

    def no_room(self) -> bool:
        return False

    def arrived(self) -> None:
        self._wire.fail(Failure(grpc.StatusCode.UNIMPLEMENTED, "there is no such method", b""))

    def received(self, request: bytes) -> None:
        """Take none: none was asked for."""

    def requests_ended(self) -> None:
        """Likewise."""
