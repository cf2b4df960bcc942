"""One call of gRPC's server; nothing in it waits except `WireCall.send`.

gRPC's synchronous server for Python spends 100 us on a call before it can be looked at, while the
look itself takes 9 us. It also gives threads to calls whose request has not arrived, and takes all
calls in the order of arrival, whoever makes them. So this package uses the layer below that server:
the core's server, its event queue and its calls, as Cython exposes them.
`headrace.server.front.wire_server` takes calls from the queue; this module handles each call.

*Source:* ``grpc/_server.py`` of grpcio 1.82.3 and 1.85.1, which use the same parts in the same way.
Only these two modules use them. `check_parts` looks for them, and a server calls itself before it
is ready (`headrace.server.rpc.self_call`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.errors import ConfigurationError
from headrace.server.front.status import DETAILS_KEY, Failure

PARTS = (
    "CompletionQueue",
    "CompletionType",
    "ReceiveCloseOnServerOperation",
    "ReceiveMessageOperation",
    "SendInitialMetadataOperation",
    "SendMessageOperation",
    "SendStatusFromServerOperation",
    "Server",
    "StatusCode",
    "auth_context",
)

_NO_FLAGS = 0
_OK = 0
_CODES = {code: code.value[0] for code in grpc.StatusCode}


def check_parts() -> None:
    """Look for the parts of grpcio that this package uses.

    Raises:
        ConfigurationError: One is missing.
    """
    missing = [name for name in PARTS if not hasattr(cygrpc, name)]
    if missing:
        raise ConfigurationError(
            f"this server does not work with grpcio {grpc.__version__}, which lacks "
            f"{', '.join(missing)}; install the version that headrace was tested with "
            "(pip install 'headrace[server]')"
        )


class Receiver(Protocol):
    """Receives the events of a call in the thread that serves all calls, so it must not wait."""

    @property
    def line(self) -> str:
        """The line in which the call waits, read when the headers have arrived."""

    def arrived(self) -> None:
        """Handle the call's turn."""

    def received(self, request: bytes) -> None:
        """Handle a request."""

    def requests_ended(self) -> None:
        """Handle the end of requests."""


class WireCall:
    """One call; thread-safe.

    Args:
        event: gRPC's event of a new call.

    Attributes:
        metadata: The metadata of the call.
        is_cancelled: Whether the client is gone, or has cancelled or reset the call.
    """

    def __init__(self, event: Any) -> None:
        # None after the end: gRPC counts a call among those of its connection until nothing refers
        # to it, and whoever received the call may keep this object, such as in a cycle.
        self._call: Any | None = event.call
        self.metadata: Sequence[tuple[str, str | bytes]] = event.invocation_metadata
        self._receiver: Receiver
        self._on_over: Callable[[], None]
        self._lock = threading.RLock()
        # Number of operations in progress, and whether one of them sends a message.
        self._pending = 0
        self._is_sending = False
        # Whether anything was sent, whether the status was, and whether the client is gone.
        self._has_sent = self._has_status = self.is_cancelled = False
        self._callbacks: list[Callable[[], None]] | None = []
        # Released when a message is sent for which a thread waits.
        self._out: threading.Lock | None = None

    def serve(self, receiver: Receiver, on_over: Callable[[], None]) -> None:
        """Start to watch for the end of the call, and pass the call to the receiver.

        Args:
            receiver: Receives the call's events.
            on_over: Called when the call has ended and no operation is in progress.
        """
        self._receiver, self._on_over = receiver, on_over
        with self._lock:
            self._start((cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS),), self._on_close)
        receiver.arrived()

    def peer(self) -> str:
        """Return the client's address in gRPC's notation."""
        return "" if self._call is None else str(self._call.peer().decode(errors="replace"))

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        """Return the TLS properties of the client."""
        call = self._call
        known = None if call is None else cygrpc.auth_context(call)
        found = cast("Mapping[bytes, Sequence[bytes]]", known or {})
        return {key.decode(): values for key, values in found.items()}

    def receive(self) -> None:
        """Ask for the next request; the receiver gets it or the end of requests."""
        with self._lock:
            if self.is_active:
                self._start((cygrpc.ReceiveMessageOperation(_NO_FLAGS),), self._on_request)

    @property
    def is_active(self) -> bool:
        """Whether the client still waits for an answer."""
        return not (self.is_cancelled or self._has_status)

    def send(self, message: bytes) -> bool:
        """Send a message and wait until it is sent; return whether more may follow."""
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
        """Send a message without waiting; the next may follow when ``on_sent`` was called.

        Returns:
            Whether the client waits for it; if not, ``on_sent`` is never called.
        """

        def done(_event: object) -> None:
            self._is_sending = False
            try:
                on_sent()
            finally:
                self._finished()

        with self._lock:
            if not self.is_active:
                return False
            self._is_sending = True
            self._start(
                (*self._initial_metadata(), cygrpc.SendMessageOperation(message, _NO_FLAGS)), done
            )
            return True

    def answer(self, message: bytes | None) -> bool:
        """End the call without an error and without waiting, with an optional last message.

        Returns:
            Whether the client waited for it.
        """
        last = () if message is None else (cygrpc.SendMessageOperation(message, _NO_FLAGS),)
        return self._end_with(cygrpc.SendStatusFromServerOperation(None, _OK, b"", _NO_FLAGS), last)

    def fail(self, failure: Failure) -> bool:
        """End the call with a failure, without waiting; return whether the client waited for it."""
        details = ((DETAILS_KEY, failure.details),) if failure.details else None
        text = failure.message.encode()
        status = cygrpc.SendStatusFromServerOperation(
            details, _CODES[failure.code], text, _NO_FLAGS
        )
        return self._end_with(status, ())

    def cancel(self) -> None:
        """Cut the call; this ends every wait of `send`."""
        call = self._call
        if call is not None:
            call.cancel()

    def cut(self, failure: Failure) -> None:
        """End the call whatever it does: with a failure, or by force if its client does not read.

        The second time it is always by force.
        """
        with self._lock:
            is_told = not self._is_sending and self.fail(failure)
        if not is_told:
            self.cancel()

    def on_end(self, callback: Callable[[], None]) -> bool:
        """Register a callback for the end of the call; return False if the call has ended."""
        with self._lock:
            if self._callbacks is None:
                return False
            self._callbacks.append(callback)
            return True

    def _end_with(self, status: Any, last: tuple[Any, ...]) -> bool:
        with self._lock:
            if not self.is_active:
                return False
            self._start((*self._initial_metadata(), *last, status), self._finished)
            self._has_status = True
            return True

    def _initial_metadata(self) -> tuple[Any, ...]:
        """Return the operations that must come before anything else is sent, once."""
        if self._has_sent:
            return ()
        self._has_sent = True
        return (cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS),)

    def _start(self, operations: tuple[Any, ...], done: Callable[[Any], None]) -> None:
        """Start operations; ``done`` gets their result, and must call `_finished`."""
        assert self._call is not None
        self._call.start_server_batch(operations, done)
        self._pending += 1

    def _on_close(self, event: Any) -> None:
        if event.batch_operations[0].cancelled():
            with self._lock:
                self.is_cancelled = True
        self._finished()

    def _on_request(self, event: Any) -> None:
        request = event.batch_operations[0].message()
        try:
            if request is None:
                self._receiver.requests_ended()
            else:
                self._receiver.received(request)
        finally:
            self._finished()

    def _finished(self, _event: object = None) -> None:
        with self._lock:
            self._pending -= 1
            if self._pending or self.is_active:
                return
            callbacks, self._callbacks = self._callbacks, None
            self._call = None
        if callbacks is None:
            return
        try:
            for callback in callbacks:
                callback()
        finally:
            del self._receiver
            self._on_over()
