"""The standard health service, which needs no thread and so answers even under full load.

Its methods are those of ``grpc.health.v1``. gRPC's own servicer sends updates while it holds the
lock that every check needs, so a client that does not read would block all checks.
"""

from __future__ import annotations

import threading

import grpc
from grpc_health.v1 import health_pb2

from headrace.errors import ServerBusyError
from headrace.server.front.calls import Call, Method
from headrace.server.front.status import Failure

SERVICE = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

MOST_WATCHERS = 1024
"""Most concurrent calls of Watch (arbitrary; each takes a few KiB and no thread). A quarter of the
connections if that is less: anybody may watch, and connections with a call are not dropped."""

_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of a server and its services; thread-safe.

    Args:
        connections: The most connections of the server.
    """

    def __init__(self, connections: int) -> None:
        self._most_watchers = min(MOST_WATCHERS, connections // 4)
        self._lock = threading.Lock()
        self._statuses: dict[str, health_pb2.HealthCheckResponse.ServingStatus] = {"": _NOT_SERVING}
        self._watchers: set[_Watcher] = set()
        self._is_ending = False

    def methods(self) -> dict[str, Method]:
        """Return the service's methods by their full names."""
        return {f"/{SERVICE}/Check": _Check(self), f"/{SERVICE}/Watch": _Watch(self)}

    def status(self, service: str) -> health_pb2.HealthCheckResponse.ServingStatus | None:
        """Return the status of a service; None if there is no service of this name."""
        return self._statuses.get(service)

    def set(self, service: str, status: health_pb2.HealthCheckResponse.ServingStatus) -> None:
        """Change the status of a service, unless the server is shutting down."""
        with self._lock:
            if self._is_ending:
                return
            self._statuses[service] = status
        self._notify(service)

    def enter_graceful_shutdown(self) -> None:
        """Report all services as not serving, and ignore later changes."""
        with self._lock:
            self._is_ending = True
            self._statuses = dict.fromkeys(self._statuses, _NOT_SERVING)
        for service in list(self._statuses):
            self._notify(service)

    def watch(self, watcher: _Watcher) -> None:
        """Notify a watcher of every change.

        Raises:
            ServerBusyError: There are as many watchers as allowed.
        """
        with self._lock:
            if len(self._watchers) >= self._most_watchers:
                raise ServerBusyError(
                    f"{self._most_watchers} calls already watch this server's health, its maximum; "
                    "use Check, or try again",
                )
            self._watchers.add(watcher)

    def leave(self, watcher: _Watcher) -> None:
        """Stop notifying a watcher."""
        with self._lock:
            self._watchers.discard(watcher)

    def _notify(self, service: str) -> None:
        with self._lock:
            watchers = [one for one in self._watchers if one.service == service]
        # Not under the lock, which the serving thread takes for every call of Watch.
        for watcher in watchers:
            watcher.tell()


class _Check:
    is_open = True

    def __init__(self, health: Health) -> None:
        self._health = health

    def check(self, call: Call) -> None:
        """Accept every call."""

    def received(self, call: Call, request: bytes) -> None:
        service = call.parsed(request, health_pb2.HealthCheckRequest).service
        status = self._health.status(service)
        if status is None:
            call.refuse(Failure(grpc.StatusCode.NOT_FOUND, "unknown service", b""))
        else:
            call.answer(_message(status))


class _Watch:
    is_open = True

    def __init__(self, health: Health) -> None:
        self._health = health

    def check(self, call: Call) -> None:
        """Accept every call."""

    def received(self, call: Call, request: bytes) -> None:
        service = call.parsed(request, health_pb2.HealthCheckRequest).service
        watcher = _Watcher(self._health, service, call)
        self._health.watch(watcher)
        if call.on_end(lambda: self._health.leave(watcher)):
            watcher.tell()
        else:
            self._health.leave(watcher)


class _Watcher:
    """Sends changes to one caller, one message at a time; slow callers miss changes in between."""

    def __init__(self, health: Health, service: str, call: Call) -> None:
        self.service = service
        self._health = health
        self._call = call
        self._lock = threading.Lock()
        self._is_sending = False
        self._said: health_pb2.HealthCheckResponse.ServingStatus | None = None

    def tell(self) -> None:
        """Send the status if it has changed, at once or when the previous message is sent."""
        with self._lock:
            status = self._health.status(self.service)
            status = _UNKNOWN if status is None else status
            if self._is_sending or status == self._said:
                return
            self._is_sending, self._said = True, status
        self._call.send_soon(_message(status), self._sent)

    def _sent(self) -> None:
        with self._lock:
            self._is_sending = False
        self.tell()


def _message(status: health_pb2.HealthCheckResponse.ServingStatus) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
