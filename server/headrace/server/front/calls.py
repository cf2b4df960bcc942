"""A call from its headers to its end.

Contract:

1. Headers: the caller is identified at once, by its token or certificate, or where there is no file
   of callers by its address. The call waits for its turn in its caller's line, or in that of its
   network if the caller is unknown (`WireServer`). A caller without access is refused before its
   request is received. None of this holds a thread.
2. Request: it must arrive within ``request_timeout_s``, or the call ends with ``REQUEST_MISSING``.
   If more than `MOST_WAITING` calls wait for their requests, the oldest of the line with most of
   them ends with ``SERVER_BUSY``. A request that cannot be parsed ends with ``REQUEST_MALFORMED``.
3. Work: a thread of the method's pool takes the call (`headrace.server.front.methods`).
4. End: answers and failures are sent without waiting. A client that does not read them within
   ``request_timeout_s`` is cut off.
5. Every failure is one of `headrace.errors`, and is counted. Any other exception is a bug in
   headrace, and the client learns no details.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from traceback import clear_frames
from typing import Protocol, TypeVar

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
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.server.front.networks import network_of
from headrace.server.front.request_limits import check_lengths
from headrace.server.front.status import Failure, failure_of, internal_failure
from headrace.server.front.tallied import TalliedLog
from headrace.server.front.waiting import Waiting
from headrace.server.front.wire import WireCall
from headrace.server.front.wire_server import Arrivals

MOST_WAITING = 512
"""Most calls that wait for a request, or for their answer to be read; each may hold 1 MiB."""

# As gRPC names it.
_CERTIFICATE = "x509_pem_cert"

_TALLY = "%d since the last such line, last: %s"

_log = logging.getLogger(__name__)

_Request = TypeVar("_Request", bound=Message)


class Failures(Protocol):
    """Counts failed calls."""

    def call_failed(self, reason: str) -> None:
        """Count a failed call."""


class Method(Protocol):
    """One method of a service."""

    @property
    def is_open(self) -> bool:
        """Whether it answers unknown callers."""

    def check(self, call: Call) -> None:
        """Raise if the call must be refused before its request is received; does not wait."""

    def received(self, call: Call, request: bytes) -> None:
        """Take a request; runs in the thread that serves all calls, so it must not wait."""


@dataclass(frozen=True, slots=True)
class SharedByCalls:
    """The objects that all calls of a server share.

    Attributes:
        access: Identifies callers.
        failures: Counts failed calls.
        waiting: The calls that wait for their client.
        places: The URLs of datasets, which are hidden from callers on other machines.
        malformed: Logs malformed requests.
        hidden: Logs errors whose details were hidden.
    """

    access: Access
    failures: Failures
    waiting: Waiting
    places: DatasetPlaces
    malformed: TalliedLog = field(
        default_factory=lambda: TalliedLog(_log, "malformed requests: " + _TALLY)
    )
    hidden: TalliedLog = field(
        default_factory=lambda: TalliedLog(_log, "calls failed at files: " + _TALLY)
    )


class Call:
    """One call; the contract is above.

    Args:
        name: The name of the method.
        method: The method, which answers the call.
        shared: The objects that all calls share.
        wire: The call in gRPC.

    Attributes:
        caller: The caller. Without a file of callers it has the name of its network; if it is
            unknown, it has no name.
        is_known: Whether the caller is known.
        peer: The client's address in gRPC's notation.
        metadata: The metadata of the call.
        send: See `WireCall.send`.
        send_soon: See `WireCall.send_soon`.
        cancel: See `WireCall.cancel`.
        on_end: See `WireCall.on_end`.
    """

    def __init__(self, name: str, method: Method, shared: SharedByCalls, wire: WireCall) -> None:
        self.name = name
        self._method = method
        self._shared = shared
        self._wire = wire
        self.peer, self.metadata = wire.peer(), wire.metadata
        self.send, self.send_soon = wire.send, wire.send_soon
        self.cancel, self.on_end = wire.cancel, wire.on_end
        self._request_count = 0
        self._is_wanting = True
        self.caller: Caller = ANYBODY
        # Found when the headers arrive, and raised when the call has its turn.
        self._refusal: HeadraceError | None = None
        self.is_known = True
        try:
            self.caller = self.known_caller()
        except HeadraceError as error:
            self.is_known = False
            if not method.is_open:
                self._refusal = error

    @property
    def line(self) -> str:
        """The line in which the call waits, among known callers or among strangers."""
        return self.caller.name or network_of(self.host)

    def no_room(self) -> None:
        """Prepare to refuse the call, because its line is full."""
        self._refusal = ServerBusyError("too many calls are waiting for their turn; try again")

    def arrived(self) -> None:
        """Ask for the request, or refuse it."""
        self.guarded(self._admit)

    def received(self, request: bytes) -> None:
        """Give the request to the method."""
        self._request_count += 1
        self._is_wanting = False
        self._shared.waiting.remove(self)
        if self.is_active:
            self.guarded(lambda: self._method.received(self, request))

    def requests_ended(self) -> None:
        """End the call; this is not an error if it had a request or its client has reset it."""
        if self._request_count:
            self.answer(None)
        elif self.is_active:
            error = RequestMalformedError("the call has no request; send one")

            def count() -> None:
                if not self._wire.is_cancelled:
                    self._shared.failures.call_failed(error.reason)

            # gRPC may tell of the end of requests before it tells that the client has reset it.
            self.on_end(count)
            self.refuse(self._told(error))

    def receive_another(self) -> None:
        """Wait for one more request."""
        self._is_wanting = True
        self._shared.waiting.add(self)
        self._wire.receive()

    def guarded(self, work: Callable[[], None]) -> None:
        """Do some work; an exception ends the call."""
        try:
            work()
        except HeadraceError as error:
            self.fail(error)
            # What ended the call may be kept, as by the stream that it ended; not what frames hold.
            clear_frames(error.__traceback__)
        except Exception:  # noqa: BLE001 - the servicer's boundary
            _log.exception("%s failed; this is a bug of headrace", self.name)
            self._shared.failures.call_failed(InternalError.reason)
            self.refuse(internal_failure())

    def parsed(self, request: bytes, kind: type[_Request]) -> _Request:
        """Return the parsed request.

        Raises:
            RequestMalformedError: The bytes are not such a request.
            BadArgumentError: A list in it is too long.
        """
        try:
            found = kind.FromString(request)
        except DecodeError:
            self._shared.malformed.add(f"{self.name} from {self.host}")
            raise RequestMalformedError(
                f"the {len(request)} bytes of the request are not a {kind.DESCRIPTOR.full_name}; "
                "send one made with the stubs of this version"
            ) from None
        check_lengths(found)
        return found

    @property
    def is_active(self) -> bool:
        """Whether the client still waits for an answer."""
        return self._wire.is_active

    @property
    def host(self) -> str:
        """The client's address without the port; all clients of a unix socket share one."""
        return host_of(self.peer)

    @property
    def certificate(self) -> bytes:
        """The client's verified certificate, in PEM; empty without one."""
        return b"".join(self._wire.auth_context().get(_CERTIFICATE, ()))

    def answer(self, message: bytes | None) -> None:
        """End the call without an error, with an optional last message."""
        self._wait_until_taken(self._wire.answer(message))

    def fail(self, error: HeadraceError) -> None:
        """End the call with an error; callers on other machines get no paths of this one."""
        self._shared.failures.call_failed(error.reason)
        self.refuse(self._told(error))

    def cut(self, error: HeadraceError) -> None:
        """End the call in the middle of its work; see `WireCall.cut`."""
        self._wire.cut(self._told(error))

    def _told(self, error: HeadraceError) -> Failure:
        told = error if self.host == "unix" else self._shared.places.without(error)
        if told is not error:
            self._shared.hidden.add(f"{self.name}: {error.message}")
        return failure_of(told)

    def refuse(self, failure: Failure) -> None:
        """End the call with a failure that is not counted here."""
        self._wait_until_taken(self._wire.fail(failure))

    def known_caller(self) -> Caller:
        """Return the caller according to the current callers file.

        Raises:
            HeadraceError: See `Access.caller`.
        """
        caller = self._shared.access.caller(
            self.metadata, lambda: subjects_of(self._wire.auth_context())
        )
        return caller if caller.name else replace(caller, name=network_of(self.host))

    def give_up(self, *, for_room: bool) -> None:
        """End a call that has waited for its client."""
        if not (self._is_wanting and self.is_active):
            self.cancel()
        elif self._request_count:
            self._wire.answer(None)
        else:
            error = self._too_many() if for_room else self._too_late()
            self._shared.failures.call_failed(error.reason)
            # Nothing was sent before, so flow control does not hold this back.
            self._wire.fail(failure_of(error))

    def _too_many(self) -> HeadraceError:
        return ServerBusyError("too many calls are waiting for their request; try again")

    def _too_late(self) -> HeadraceError:
        return RequestMissingError(
            f"the request did not arrive within {self._shared.waiting.timeout_s:g} s of the call's "
            "headers; try again"
        )

    def _admit(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._method.check(self)
        # A method that does not exist has ended the call.
        if self.is_active:
            self._wait()
            self._wire.receive()

    def _wait_until_taken(self, is_awaited: bool) -> None:  # noqa: FBT001 - what was just returned
        if is_awaited:
            self._is_wanting = False
            self._wait()

    def _wait(self) -> None:
        """Be given up if the client takes too long."""
        self._shared.waiting.add(self)
        # The call may have ended before it was added.
        if not self.on_end(self._ended):
            self._ended()

    def _ended(self) -> None:
        self._shared.waiting.remove(self)


def arrivals_of(methods: Mapping[str, Method], shared: SharedByCalls) -> Arrivals:
    """Return functions that make the calls of methods, and of unknown methods.

    Args:
        methods: The methods by their full names, such as ``/package.Service/Method``.
        shared: The objects that all calls share.
    """
    return {
        name: partial(Call, name, method, shared)
        for name, method in ({"": _NoMethod()} | dict(methods)).items()
    }


class _NoMethod:
    """The method of calls of unknown methods."""

    is_open = True

    def check(self, call: Call) -> None:
        call.refuse(Failure(grpc.StatusCode.UNIMPLEMENTED, "there is no such method", b""))

    def received(self, call: Call, request: bytes) -> None:
        """Do nothing, because the call has ended."""
