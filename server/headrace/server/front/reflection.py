"""The standard reflection service, which answers request by request and holds no thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from grpc_reflection.v1alpha import reflection, reflection_pb2

from headrace.server.front.calls import Call, Method
from headrace.server.front.methods import Pool, PoolMethod

SERVICE = str(reflection.SERVICE_NAME)


def reflection_methods(services: Iterable[str], pool: Pool) -> dict[str, Method]:
    """Return the service's method by its full name.

    Args:
        services: Full names of the services to describe.
        pool: The threads that answer.
    """
    # Its stubs do not state what it returns, nor that it ignores the context.
    servicer: Any = reflection.ReflectionServicer((*services, SERVICE))

    def answer(request: reflection_pb2.ServerReflectionRequest, _: Call) -> bytes:
        (response,) = servicer.ServerReflectionInfo(iter([request]), None)
        return bytes(response.SerializeToString())

    def finish(call: Call, message: bytes | None) -> None:
        call.send_soon(message or b"", call.receive_another)

    kind = reflection_pb2.ServerReflectionRequest
    found = PoolMethod(kind, pool, answer, finish, is_open=True)
    return {f"/{SERVICE}/ServerReflectionInfo": found}
