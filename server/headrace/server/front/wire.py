"""One call of gRPC's synchronous server, with nothing in it that waits but `WireCall.send`.

That server gives each call a thread before it looks at it, and the thread waits inside gRPC until
the request has come: a caller that sends headers and no request holds it for as long as it likes.
So every method is declared as one that takes a stream of requests, which is the same on the wire,
and as one that does not block, as gRPC's own health service is. Then the call comes here at once,
in the thread that serves; the request is asked for, and the call goes on when it is there.

*Source:* read in ``grpc/_server.py`` of grpcio 1.71.2 and 1.85.1, which agree. Of what is not
public this module uses the attributes of a behaviour that gRPC's health service sets
(``experimental_non_blocking``, ``experimental_thread_pool``), the state of a call with its
condition, the operations of a call, and the functions that send a status and count what is due.
Nothing else of headrace uses any of it, and tests/server/front/test_front.py says when it changes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import grpc
from grpc import _server
from grpc._cython import cygrpc  # type: ignore[attr-defined]  # it has no stubs

from headrace.server.front.status import DETAILS_KEY, Failure

_NO_FLAGS = 0
# What is due of a call; others than gRPC's own.
_RECEIVE, _SEND = "headrace_receive", "headrace_send"


class Receiver(Protocol):
    """What is told of a call; both by the thread that serves all calls, so neither may wait."""

    def arrived(self) -> None:
        """Note that the headers are there."""

    def received(self, request: bytes) -> None:
        """Take the request."""

    def requests_ended(self) -> None:
        """Note that none comes any more."""


class _AtOnce(ThreadPoolExecutor):
    """Runs what it is given in the thread that gives it."""

    def __init__(self) -> None:
        super().__init__(1, thread_name_prefix="headrace-none")

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


AT_ONCE = _AtOnce()
"""What gRPC is to take for a pool."""


def handler_of(make: Callable[[], WireCall]) -> grpc.RpcMethodHandler[Any, Any]:
    """Return how gRPC is to handle the calls of a method.

    Args:
        make: Makes each of them.
    """

    def behave(
        _requests: object, context: grpc.ServicerContext, send: Callable[[Any], None]
    ) -> None:
        make().take(context, send)

    behave.experimental_non_blocking = True  # type: ignore[attr-defined]  # functions have them
    behave.experimental_thread_pool = AT_ONCE  # type: ignore[attr-defined]
    return grpc.stream_stream_rpc_method_handler(behave)


class WireCall:
    """One call; safe for several threads.

    Args:
        receiver: Is told of it.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def take(self, context: grpc.ServicerContext, send: Callable[[Any], None]) -> None:
        """Take the call over from gRPC."""
        self.context = context
        self._send = send
        self._state = context._state  # type: ignore[attr-defined] # noqa: SLF001 - see above
        self._event = context._rpc_event  # type: ignore[attr-defined] # noqa: SLF001 - see above
        self._receiver.arrived()

    def receive(self) -> None:
        """Ask for the next request; the receiver is told when it is there, or none comes."""

        def done(event: Any) -> object:
            request = event.batch_operations[0].message()
            left = self._finished(_RECEIVE)
            if request is None:
                self._receiver.requests_ended()
            else:
                self._receiver.received(request)
            return left

        self._start(_RECEIVE, [cygrpc.ReceiveMessageOperation(_NO_FLAGS)], done)

    @property
    def is_active(self) -> bool:
        """Whether somebody still waits for an answer."""
        return bool(self.context.is_active())

    def send(self, message: bytes) -> bool:
        """Send a message, and wait until it is out; return whether more may follow."""
        self._send(message)
        return self.is_active

    def send_soon(self, message: bytes, on_sent: Callable[[], None]) -> bool:
        """Send a message without waiting; the next may follow when ``on_sent`` has been called.

        Returns:
            Whether somebody waits for it; else ``on_sent`` is never called.
        """

        def done(_event: object) -> object:
            left = self._finished(_SEND)
            on_sent()
            return left

        with self._state.condition:
            if not self.is_active:
                return False
            operations = [cygrpc.SendMessageOperation(message, _NO_FLAGS)]
            if self._state.initial_metadata_allowed:
                operations.insert(0, cygrpc.SendInitialMetadataOperation(None, _NO_FLAGS))
                self._state.initial_metadata_allowed = False
            self._start(_SEND, operations, done)
            return True

    def answer(self, message: bytes | None) -> bool:
        """End the call well, with a last message or without, and without waiting.

        Returns:
            Whether somebody waited for it.
        """
        with self._state.condition:
            if not self.is_active:
                return False
            _server._status(self._event, self._state, message)  # noqa: SLF001 - see above
            return True

    def fail(self, failure: Failure) -> bool:
        """End the call with a failure, without waiting; return whether somebody waited for it."""
        with self._state.condition:
            if not self.is_active:
                return False
            self.context.set_code(failure.code)
            self.context.set_details(failure.message)
            if failure.details:
                self.context.set_trailing_metadata(((DETAILS_KEY, failure.details),))
            return self.answer(None)

    def cancel(self) -> None:
        """Cut the call; it ends every wait of `send`."""
        self.context.cancel()  # type: ignore[no-untyped-call]  # the stubs leave it so

    def on_end(self, callback: Callable[[], None]) -> bool:
        """Have something called when the last of the call is out; return False if it already is."""
        return self.context.add_callback(callback)

    def _start(self, token: str, operations: list[Any], done: Callable[[Any], object]) -> None:
        with self._state.condition:
            if self.is_active:
                self._state.due.add(token)
                self._event.call.start_server_batch(operations, done)

    def _finished(self, token: str) -> object:
        """Return what gRPC wants to know when an operation is over, before the next of its kind."""
        with self._state.condition:
            return _server._possibly_finish_call(self._state, token)  # noqa: SLF001 - see above
