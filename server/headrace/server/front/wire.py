"""One call of gRPC's server, with nothing in it that waits but `WireCall.send`.

What gRPC's synchronous server for Python makes of a call before anybody may look at it takes ten
times as long as the look (100 us beside 9), gives a thread to calls whose request has not come, and
takes all of them in the order in which they came, whoever calls. So this package stands on what
that server stands on too: the core's server, its queue of events and its calls, as Cython shows
them. `headrace.server.front.wire_server` takes calls from the queue; this is what becomes of one.

*Source:* read in ``grpc/_server.py`` of grpcio 1.71.2 and 1.85.1, which use the same parts in the
same way. These two modules alone use them, and tests/server/front/test_front.py says when they
change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.server.front.status import DETAILS_KEY, Failure

_NO_FLAGS = 0
_OK = cygrpc.StatusCode.ok
_CODES = {code: code.value[0] for code in grpc.StatusCode}


class Receiver(Protocol):
    """What is told of a call; always by the thread that serves all calls, so it may not wait."""

    @property
    def line(self) -> str:
        """In whose line the call waits; asked when the headers are there. Empty for no line."""

    def arrived(self) -> None:
        """Note that the call has its turn."""

    def received(self, request: bytes) -> None:
        """Take the request."""

    def requests_ended(self) -> None:
        """Note that none comes any more."""


class WireCall:
    """One call; safe for several threads.

    Args:
        event: What gRPC says of a call that has come.

    Attributes:
        metadata: What came with the headers.
    """

    __slots__ = (
        "_call",
        "_callbacks",
        "_due",
        "_is_begun",
        "_is_cancelled",
        "_is_said",
        "_lock",
        "_on_over",
        "_out",
        "_receiver",
        "metadata",
    )

    def __init__(self, event: Any) -> None:
        self._call = event.call
        self.metadata: Sequence[tuple[str, str | bytes]] = event.invocation_metadata
        self._receiver: Receiver
        self._on_over: Callable[[bool], None]
        self._lock = threading.RLock()
        # Operations that are under way.
        self._due = 0
        # Whether something was sent, whether the status was, and whether the client is gone.
        self._is_begun = self._is_said = self._is_cancelled = False
        self._callbacks: list[Callable[[], None]] | None = []
        # Released when a message is out for which a thread waits.
        self._out: threading.Lock | None = None

    def go_on(self, receiver: Receiver, on_over: Callable[[bool], None]) -> None:
        """Watch for the call's end from now on, and hand the call to the receiver.

        Args:
            receiver: Is told of it.
            on_over: Called when the call is over and nothing of it is under way, with whether its
                client was gone before anything was sent.
        """
        self._receiver, self._on_over = receiver, on_over
        with self._lock:
            self._start((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._client_is_gone)
        receiver.arrived()

    def peer(self) -> str:
        """Return the client's address as gRPC has it."""
        return str(self._call.peer().decode(errors="replace"))

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return what TLS knows of the client."""
        found = cast("Mapping[bytes, Sequence[bytes]]", cygrpc.auth_context(self._call) or {})
        return {key.decode(): values for key, values in found.items()}

    def receive(self) -> None:
        """Ask for the next request; the receiver is told when it is there, or none comes."""
        with self._lock:
            if self.is_active:
                self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._message_is_there)

    @property
    def is_active(self) -> bool:
        """Whether somebody still waits for an answer."""
        return not (self._is_cancelled or self._is_said)

    def send(self, message: bytes) -> bool:
        """Send a message, and wait until it is out; return whether more may follow."""
        with self._lock:
            out = self._out
            if out is None:
                out = self._out = threading.Lock()
                out.acquire()
            if not self.send_soon(message, out.release):
                return False
        out.acquire()
        return self.is_active

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message without waiting; the next may follow when ``on_sent`` has been called.

        Returns:
            Whether somebody waits for it; else ``on_sent`` is never called.
        """

        def done(_event: object) -> None:
            try:
                on_sent()
            finally:
                self._finished()

        with self._lock:
            if not self.is_active:
                return False
            self._start((*self._greeting(), cygrpc.SendMessageOperation(message, _NO_FLAGS)), done)
            return True

    def answer(self, message: bytes | None) -> bool:
        """End the call without an error and without waiting, with a last message or none.

        Returns:
            Whether somebody waited for it.
        """
        last = () if message is None else (cygrpc.SendMessageOperation(message, _NO_FLAGS),)
        return self._say(cygrpc.SendStatusFromServerOperation(None, _OK, b"", _NO_FLAGS), last)

    def fail(self, failure: Failure) -> bool:
        """End the call with a failure, without waiting; return whether somebody waited for it."""
        details = ((DETAILS_KEY, failure.details),) if failure.details else None
        text = failure.message.encode()
        status = cygrpc.SendStatusFromServerOperation(
            details, _CODES[failure.code], text, _NO_FLAGS
        )
        return self._say(status, ())

    def cancel(self) -> None:
        """Cut the call; it ends every wait of `send`."""
        self._call.cancel()

    def on_end(self, callback: Callable[[], None]) -> bool:
        """Have something called when the last of the call is out; return False if it already is."""
        with self._lock:
            if self._callbacks is None:
                return False
            self._callbacks.append(callback)
            return True

    def _say(self, status: Any, last: tuple[Any, ...]) -> bool:
        with self._lock:
            if not self.is_active:
                return False
            self._start((*self._greeting(), *last, status), self._is_out)
            self._is_said = True
            return True

    def _greeting(self) -> tuple[Any, ...]:
        """Return what comes before all else that is sent, once."""
        if self._is_begun:
            return ()
        self._is_begun = True
        return (cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),)

    def _start(self, operations: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """Start operations; ``done`` gets what came of them, and must call `_finished`."""
        self._call.start_server_batch(operations, done)
        self._due += 1

    def _client_is_gone(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            with self._lock:
                self._is_cancelled = True
        self._finished()

    def _message_is_there(self, event: Any) -> None:
        request = event.batch_operations[0].message()
        try:
            if request is None:
                self._receiver.requests_ended()
            else:
                self._receiver.received(request)
        finally:
            self._finished()

    def _is_out(self, _event: object) -> None:
        self._finished()

    def _finished(self) -> None:
        with self._lock:
            self._due -= 1
            if self._due or self.is_active:
                return
            callbacks, self._callbacks = self._callbacks, None
        if callbacks is None:
            return
        try:
            for callback in callbacks:
                callback()
        finally:
            # It refers to us, and gRPC clears a call away with the last reference to it.
            del self._receiver
            self._on_over(self._is_cancelled and not self._is_begun)
