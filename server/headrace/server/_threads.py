"""The threads that answer calls, apart by kind, so that no kind of call can starve another.

A stream holds a thread for as long as it is open, and so does a reflection call, which a client may
leave open for ever. If all calls shared one pool, enough of either would silence health checks, and
the server would be restarted for being busy.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

# Streams past the limit are told so; that takes a thread for a moment.
_REFUSALS = 4
# Unary calls and health checks; none of them waits for anything but processor time.
_UNARY = 8
_REFLECTIONS = 2
# Calls beyond those that threads can take wait in a queue, which must end somewhere: gRPC answers
# those past it with RESOURCE_EXHAUSTED by itself. So many that some thousand ranks that come at
# once are refused in order, with the time to wait (arbitrary; each takes some KiB).
MAX_QUEUED_CALLS = 8192


class CallThreads:
    """The pools of one server.

    Attributes:
        streams: For streams, and for the refusals of those too many.
        unary: For all other calls of ours, and for health.
    """

    def __init__(self, max_streams: int) -> None:
        self.streams = _pool("stream", max_streams + _REFUSALS)
        self.unary = _pool("rpc", _UNARY)
        self._reflections = _pool("reflection", _REFLECTIONS)

    def reflection_handler(self, services: tuple[str, ...]) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the standard reflection service, with threads of its own."""
        servicer = reflection.ReflectionServicer((*services, reflection.SERVICE_NAME))
        respond = grpc.stream_stream_rpc_method_handler(
            in_pool(self._reflections, servicer.ServerReflectionInfo),
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(
            reflection.SERVICE_NAME, {"ServerReflectionInfo": respond}
        )

    def shutdown(self) -> None:
        """Wait for all threads to end; their calls must have been cut."""
        for pool in (self.streams, self.unary, self._reflections):
            pool.shutdown()


def in_pool(pool: ThreadPoolExecutor, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return what answers a call, to be run by threads of a pool of its own.

    *Source:* the attribute is gRPC's, marked experimental there and unchanged since 2019; its own
    health service uses it. Without it the call would run in the server's pool.
    """

    def run(request: Any, context: grpc.ServicerContext) -> Any:
        return answer(request, context)

    run.experimental_thread_pool = pool  # type: ignore[attr-defined]  # functions have attributes
    return run


def _pool(name: str, size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix=f"headrace-{name}")
