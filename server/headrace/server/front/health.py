"""The standard health service, which needs no thread and so answers even under full load.

It has Check alone. Whoever wants to watch is told that Watch is not implemented, which clients of
gRPC take as healthy; probes and load balancers check.
"""

from __future__ import annotations

import threading

import grpc
from grpc_health.v1 import health_pb2

from headrace.server.front.calls import Call, Method
from headrace.server.front.status import Failure

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

LIVE = "/live"
"""The service that is SERVING as long as the server answers at all; no dataset has such a name."""

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of a server and its services; thread-safe."""

    is_open = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statuses: dict[str, health_pb2.HealthCheckResponse.ServingStatus] = {
            "": _NOT_SERVING,
            LIVE: _SERVING,
        }
        self._is_ending = False

    def methods(self) -> dict[str, Method]:
        """Return the service's method by its full name."""
        return {f"/{SERVICE}/Check": self}

    def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Change the status of a service, unless the server is shutting down."""
        with self._lock:
            if not self._is_ending:
                self._statuses[service] = status

    def enter_graceful_shutdown(self) -> None:
        """Report all services but `LIVE` as not serving, and ignore later changes."""
        with self._lock:
            self._is_ending = True
            self._statuses = dict.fromkeys(self._statuses, _NOT_SERVING) | {LIVE: _SERVING}

    def check(self, call: Call) -> None:
        """Accept every call."""

    def received(self, call: Call, request: bytes) -> None:
        """Answer with the status of a service."""
        service = call.parsed(request, health_pb2.HealthCheckRequest).service
        status = self._statuses.get(service)
        if status is None:
            call.refuse(Failure(grpc.StatusCode.NOT_FOUND, "unknown service", b""))
        else:
            call.answer(health_pb2.HealthCheckResponse(status=status).SerializeToString())
