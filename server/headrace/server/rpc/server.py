"""A running server: how it starts, drains and stops.

Contract of the end:

1. `drain` first sets the health to NOT_SERVING, then refuses new streams, ends open streams between
   two batches with ``DRAINING``, and waits up to ``drain_s`` for them. Streams that are still open
   then are cut.
2. `stop` cuts everything at once.
3. Both end all threads that the server started, and leave no socket open. Both may be called
   repeatedly and from any thread. If a part cannot be closed, the others are, and the error is
   raised.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2

from headrace.server.access.callers import Access
from headrace.server.access.tls import tls_credentials
from headrace.server.batch.freed_memory import keep_freed_memory
from headrace.server.batch.row_pool import allowed_processors
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.front.calls import MOST_WAITING, Method, SharedByCalls, arrivals_of
from headrace.server.front.descriptors import most_connections, most_fetch_threads, raise_limit
from headrace.server.front.health import SERVICE as HEALTH_SERVICE
from headrace.server.front.health import Health
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.server.front.methods import CallPools
from headrace.server.front.reflection import reflection_methods
from headrace.server.front.waiting import Waiting
from headrace.server.front.wire_server import WireServer
from headrace.server.rpc.listen import GRPC_OPTIONS, SHARED_PORT_OPTIONS, bind
from headrace.server.rpc.roster import Roster
from headrace.server.rpc.self_call import self_called
from headrace.server.rpc.shard_service import SERVICE, ShardService
from headrace.server.settings.server_config import ServerConfig, unchangeable
from headrace.server.stream.open_streams import OpenStreams
from headrace.server.stream.parts import Parts
from headrace.server.stream.transport_plugs import open_transports
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.metrics_endpoint import MetricsEndpoint, start_metrics_endpoint
from headrace.server.telemetry.status import Status, status_of
from headrace.server.telemetry.tracing import start_tracing

# How long cut calls may take to end; they have nothing left to do.
_CUT_TIMEOUT_S = 10.0

# Connections and calls of probes (arbitrary).
_MOST_PROBES = 64

_log = logging.getLogger(__name__)


class Server:
    """A started server; `start_server` makes one.

    Attributes:
        addresses: The addresses on which it listens, in the order of the configuration.
        health_address: The address of ``health_listen`` with the actual port; empty for none.
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        cache: BlockCache,
        metrics: Metrics,
        options: Sequence[tuple[str, int]] = GRPC_OPTIONS,
    ) -> None:
        self._config, self._metrics = config, metrics
        self._streams = OpenStreams(
            config.max_streams, max_streams_per_peer=config.max_streams_per_peer
        )
        tracing = start_tracing(config.otlp_endpoint)
        self._parts = Parts(config, cache, self._streams, metrics, tracing)
        self._cache, self._catalog = cache, self._parts.catalog
        access = Access(Path(config.tokens) if config.tokens else None)
        self._health = Health()
        self._pools = CallPools(config.max_streams)
        self._probes = Waiting(most=_MOST_PROBES, timeout_s=config.request_timeout_s)
        self._waiting = Waiting(
            most=MOST_WAITING,
            timeout_s=config.request_timeout_s,
            also=(self._probes.give_up_late, lambda: self._streams.look(access.changes())),
        )
        self._transports = open_transports(config, metrics)
        self._service = ShardService(self._parts, pools=self._pools, transports=self._transports)
        places = DatasetPlaces()
        self._is_port_shared = options is SHARED_PORT_OPTIONS
        connections = most_connections(config, raise_limit())
        shared = SharedByCalls(access, metrics, self._waiting, places)
        self._grpc = _wire_server(self._methods(), shared, options, connections)
        # Probes need no token.
        shared = SharedByCalls(Access(None), metrics, self._probes, places)
        self._probed = _wire_server(self._health.methods(), shared, options, _MOST_PROBES)
        self._roster = Roster(self._parts, health=self._health, places=places)
        self._metrics_endpoint: MetricsEndpoint | None = None
        self._ended = threading.Event()
        self._ending = threading.Lock()
        self.addresses: tuple[str, ...] = ()
        self.health_address = ""

    def _methods(self) -> dict[str, Method]:
        return {
            **self._service.methods(),
            **self._health.methods(),
            **reflection_methods((SERVICE, HEALTH_SERVICE), self._pools.unary),
        }

    @property
    def address(self) -> str:
        """Return the first address: ``host:port`` with the actual port, or ``unix:/path``."""
        return self.addresses[0]

    @property
    def metrics_address(self) -> str:
        """Return ``host:port`` of the metrics, or an empty text."""
        return self._metrics_endpoint.address if self._metrics_endpoint else ""

    @property
    def open_call_count(self) -> int:
        """Return the number of open streaming calls."""
        return self._streams.call_count

    @property
    def versions(self) -> dict[str, str]:
        """Return the fingerprints of the datasets, by name."""
        names = self._catalog.names
        return {name: self._catalog.get(name).dataset.fingerprint for name in names}

    @property
    def described(self) -> dict[str, object]:
        """Return the fields that the log has for a started server."""
        return {
            "version": version("headrace"),
            "addresses": " ".join(self.addresses),
            "health": self.health_address,
            "metrics": self.metrics_address,
            "datasets": len(self._catalog.names),
        }

    def start(self) -> None:
        """Open the datasets, bind all addresses and start to serve.

        Raises:
            ConfigurationError: An address cannot be bound.
            HeadraceError: A dataset cannot be opened.
        """
        config = self._config
        self._waiting.start()
        self._metrics.streams.demand.processors = allowed_processors() / max(1, config.workers)
        self._metrics.streams.stalls.start()
        if config.health_listen:
            self.health_address = self._bound(self._probed, config.health_listen)
            self._probed.start()
        self._roster.open_all()
        tls = tls_credentials(config.tls_cert, config.tls_key, config.tls_client_ca)
        self.addresses = tuple(
            self._bound(self._grpc, address, tls) for address in config.addresses
        )
        self._transports.listen(self.addresses)
        if self._config.metrics_listen:
            self._metrics_endpoint = start_metrics_endpoint(
                self._config.metrics_listen, self._metrics.registry
            )
        with self_called(self._grpc, partial(bind, self._grpc)):
            self._grpc.start()
        for name in ("", SERVICE):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._roster.tell_health()

    def _bound(
        self, server: WireServer, address: str, tls: grpc.ServerCredentials | None = None
    ) -> str:
        return bind(
            server,
            address,
            tls=tls,
            unix_mode=self._config.unix_mode,
            is_shared=self._is_port_shared,
        )

    @property
    def stream_count(self) -> int:
        """Return the number of open streams."""
        return self._streams.count

    def stream_rows(self) -> list[dict[str, Any]]:
        """Return the counts of the open streams."""
        return self._metrics.streams.rows()

    def status(self) -> Status:
        """Return the current status of the server."""
        return status_of(self._metrics.registry.collect(), self.stream_rows())

    def end_some(self, count: int) -> None:
        """Ask some streams to reconnect, and refuse new ones for a moment."""
        self._streams.end_some(count)

    def reload(self, config: ServerConfig) -> bool:
        """Serve the datasets of another configuration; other settings need a restart.

        Returns:
            Whether all datasets could be opened. Another reload with the same settings tries the
            others again.
        """
        if held := unchangeable(config, self._config):
            _log.warning("a restart is needed for: %s", ", ".join(held))
        return not self._roster.change_to(config.dataset_configs)

    def drain(self) -> bool:
        """End all streams between two batches, then stop.

        Returns:
            Whether every stream ended within ``drain_s``; the others were cut.
        """
        deadline = time.monotonic() + self._config.drain_s
        self._health.enter_graceful_shutdown()
        # New calls are refused from here on; running ones may continue until the deadline.
        self._grpc.stop(self._config.drain_s)
        self._streams.drain()
        was_idle = self._streams.wait_idle(deadline)
        if not was_idle:
            _log.warning("%d streams did not end in time and are cut off", self._streams.count)
        self.stop()
        return was_idle

    def stop(self) -> None:
        """Cut all calls and end."""
        with self._ending:
            if self._ended.is_set():
                return
            with ExitStack() as left:
                # From the last line up; one that fails does not keep the others open.
                left.callback(self._ended.set)
                if self._parts.tracing is not None:
                    left.callback(self._parts.tracing.close)
                left.callback(self._service.close)
                left.callback(self._roster.close)
                if self._metrics_endpoint is not None:
                    left.callback(self._metrics_endpoint.close)
                left.callback(self._pools.shutdown)
                left.callback(self._waiting.close)
                left.callback(self._metrics.streams.stalls.close)
                left.callback(self._cache.close)
                left.callback(self._cut)
                left.callback(self._transports.close)
                left.callback(self._streams.drain)

    def _cut(self) -> None:
        for one in (self._grpc, self._probed):
            one.stop(0).wait(_CUT_TIMEOUT_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended; return whether it has."""
        return self._ended.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def start_server(config: ServerConfig) -> Server:
    """Open the datasets, bind the addresses and start to serve.

    Raises:
        ConfigurationError: An address cannot be bound.
        HeadraceError: A dataset cannot be opened; see `headrace.storage.open_dataset`.

    Examples:
        >>> config = ServerConfig(datasets={"numbers": url}, listen="127.0.0.1:0")
        >>> with start_server(config) as server:
        ...     print(server.address)
        127.0.0.1:...
    """
    # For the whole process, and before the cache has threads.
    keep_freed_memory()
    metrics = Metrics()
    server = Server(config, cache=_open_cache(config, metrics), metrics=metrics)
    try:
        server.start()
    except BaseException:
        server.stop()
        raise
    return server


def _wire_server(
    methods: Mapping[str, Method],
    shared: SharedByCalls,
    options: Sequence[tuple[str, int]],
    connections: int,
) -> WireServer:
    most = ("grpc.max_allowed_incoming_connections", connections)
    return WireServer(arrivals_of(methods, shared), (*options, most))


def _open_cache(config: ServerConfig, metrics: Metrics) -> BlockCache:
    disk = None
    if config.cache_dir:
        disk = DiskCache(
            Path(config.cache_dir), budget_bytes=config.cache_dir_bytes, observer=metrics
        )
    threads = most_fetch_threads(config, raise_limit())
    return BlockCache(config.cache_bytes, fetch_threads=threads, observer=metrics, disk=disk)
