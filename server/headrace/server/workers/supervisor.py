"""Run a server as several processes: a supervisor with the cache, and workers that serve.

Contract:

1. All workers listen on the same ports; the kernel gives each connection to one of them. Streams
   are evened out by asking some to reconnect.
2. A worker that ends unexpectedly, or sends nothing for `SILENCE_S`, is replaced: at once the first
   time, and after longer and longer pauses if it happens again, or if its replacement cannot start.
   Its streams reconnect to other workers; streams of other workers are not affected.
3. Nothing that a worker holds outlives it: its session releases all of it.
4. `drain` asks every worker to drain, and waits ``drain_s`` and a few seconds; workers that remain
   are killed. `stop` kills at once. Both leave no process, no thread and no socket.
5. Workers end when the supervisor does, however that ends.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from headrace.errors import ConfigurationError, HeadraceError, StoreUnavailableError
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.server.cache.memory.arena import Arena
from headrace.server.cache.memory.shared_memory import Shared, WorkerTable
from headrace.server.front.descriptors import most_fetch_threads, raise_limit
from headrace.server.rpc.listen import reserve
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.server_config import ServerConfig
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.metrics_endpoint import MetricsEndpoint, start_metrics_endpoint
from headrace.server.telemetry.metrics_sum import MetricsSum
from headrace.server.telemetry.status import Status, status_of
from headrace.server.workers.messages import (
    CannotStart,
    Drain,
    EndStreams,
    Ready,
    Reload,
    Report,
    Start,
    ToSupervisor,
)
from headrace.server.workers.rebalance import Rebalance
from headrace.server.workers.shared_needs import SharedNeeds
from headrace.server.workers.shared_sources import SharedSources
from headrace.server.workers.shared_windows import SharedWindows
from headrace.server.workers.worker_handle import Session

# How long workers may take to open all datasets.
_START_TIMEOUT_S = 600.0
# How much longer than ``drain_s`` they may take to end; a server ends within 2 s of it.
_CUT_TIMEOUT_S = 0.8
# How long a worker that has closed its socket may take to end.
_END_TIMEOUT_S = 15.0
# A worker that lived this long is replaced at once; each that did not doubles the pause.
_STEADY_S = 30.0
_LONGEST_PAUSE_S = 30.0
_TICK_S = 0.25
# Workers report twice a second. A worker that is stopped, or hangs while holding Python's lock,
# sends nothing; on an overloaded machine a report may be some seconds late (arbitrary).
SILENCE_S = 10.0

_log = logging.getLogger(__name__)


class _Member:
    """One worker, or its replacement.

    Attributes:
        index: The worker's number.
        process: Its process, if it is running.
        session: Handles its requests.
        stream_count: The number of its streams as last reported; None while it does not serve.
        failure: Why it could not start.
        reported_at: When it last reported, on a monotonic clock.
        streams: The counts of its open streams, as last reported.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.process: subprocess.Popen[bytes] | None = None
        self.session: Session | None = None
        self.stream_count: int | None = None
        self.failure: HeadraceError | None = None
        self.reported_at = 0.0
        self.streams: list[dict[str, Any]] = []


class Supervisor:
    """A running server of several processes, made by `start_supervisor`.

    Attributes:
        addresses: Where it listens, in the order configured.
        health_address: Where it answers health checks; empty for nowhere else.
    """

    def __init__(self, config: ServerConfig, *, source: ConfigSource | None = None) -> None:
        self._config = config
        self._source = source
        self._metrics = Metrics()
        self._sum = MetricsSum()
        self._sum.add_registry(self._metrics.registry)
        health = filter(None, [config.health_listen])
        self._reservations = [reserve(address) for address in (*config.addresses, *health)]
        found = tuple(one.address for one in self._reservations)
        count = len(config.addresses)
        self.addresses, self.health_address = found[:count], "".join(found[count:])
        disk = None
        if config.cache_dir:
            disk = DiskCache(
                Path(config.cache_dir), budget_bytes=config.cache_dir_bytes, observer=self._metrics
            )
        self._arena = Arena(config.cache_bytes)
        self._cache = BlockCache(
            config.cache_bytes,
            fetch_threads=most_fetch_threads(config, raise_limit()),
            observer=self._metrics,
            disk=disk,
            arena=self._arena,
        )
        self._sources = SharedSources(
            self._cache, capacity=self._arena.capacity, observers=[self._metrics]
        )
        self._windows = SharedWindows(self._cache)
        self._needs = SharedNeeds()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._ended = False
        self._is_started = False
        self._members = [_Member(index) for index in range(config.workers)]
        self._threads = [
            threading.Thread(
                target=self._keep, args=(member,), name=f"headrace-worker-{member.index}"
            )
            for member in self._members
        ]
        self._spreading = threading.Thread(target=self._spread, name="headrace-spread")
        self._endpoint: MetricsEndpoint | None = None

    @property
    def address(self) -> str:
        """Return the first address: ``host:port`` with the real port."""
        return self.addresses[0]

    @property
    def metrics_address(self) -> str:
        """Return ``host:port`` of the metrics, or nothing."""
        return self._endpoint.address if self._endpoint else ""

    @property
    def worker_pids(self) -> tuple[int | None, ...]:
        """Return the process id of each worker; None for one that does not serve at the moment."""
        with self._changed:
            return tuple(
                member.process.pid
                if member.process is not None and member.stream_count is not None
                else None
                for member in self._members
            )

    @property
    def stream_counts(self) -> tuple[int | None, ...]:
        """Return the number of streams of each worker, as last reported."""
        with self._changed:
            return tuple(member.stream_count for member in self._members)

    def status(self) -> Status:
        """Return the server's current state, as its workers last reported it."""
        with self._changed:
            streams = [row for member in self._members for row in member.streams]
        return status_of(self._sum.registry.collect(), streams)

    @property
    def used_bytes(self) -> int:
        """Return the current state of the cache."""
        return self._cache.used_bytes

    def start(self) -> None:
        """Start all workers, and wait until they serve.

        Raises:
            HeadraceError: A worker cannot start.
        """
        if self._config.metrics_listen:
            self._endpoint = start_metrics_endpoint(self._config.metrics_listen, self._sum.registry)
        for thread in (*self._threads, self._spreading):
            thread.start()
        with self._changed:
            is_whole = self._changed.wait_for(
                lambda: (
                    any(member.failure for member in self._members)
                    or all(member.stream_count is not None for member in self._members)
                ),
                _START_TIMEOUT_S,
            )
            failures = [member.failure for member in self._members if member.failure]
            self._is_started = is_whole and not failures
        if failures:
            raise failures[0]
        if not is_whole:
            raise StoreUnavailableError(
                f"the workers did not open their datasets within {_START_TIMEOUT_S:.0f} s; check "
                "the store, and start again"
            )

    def reload(self) -> None:
        """Let workers read the datasets of the configuration again, as they do when it changes."""
        for member in self._members:
            if member.session is not None:
                member.session.post(Reload())

    def drain(self) -> None:
        """End all streams between two batches, then stop."""
        self._ending.set()
        for member in self._members:
            if member.session is not None:
                member.session.post(Drain())
        deadline = time.monotonic() + self._config.drain_s + _CUT_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self.stop()

    def stop(self) -> None:
        """Kill all workers and end."""
        self._ending.set()
        if self._ended:
            return
        self._ended = True
        with ExitStack() as left:
            # The last one first; one that fails does not keep the others open.
            for one in self._reservations:
                left.callback(one.close)
            left.callback(self._arena.close)
            left.callback(self._cache.close)
            if self._endpoint is not None:
                left.callback(self._endpoint.close)
            for member in self._members:
                if (process := member.process) is not None:
                    process.kill()
            for thread in (*self._threads, self._spreading):
                if thread.ident is not None:
                    thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _keep(self, member: _Member) -> None:
        pause_s = 0.0
        while not self._ending.wait(pause_s):
            began = time.monotonic()
            try:
                code = self._run(member)
            except Exception:  # noqa: BLE001 - the server must not lack a worker for good
                _log.exception("worker %d could not be run", member.index)
                code = -1
            if self._ending.is_set() or self._has_failed(member):
                return
            _log.error("worker %d ended with %d; it is replaced", member.index, code)
            is_steady = time.monotonic() - began >= _STEADY_S
            pause_s = 0.0 if is_steady else min(2 * pause_s + 0.1, _LONGEST_PAUSE_S)

    def _has_failed(self, member: _Member) -> bool:
        """Return whether a worker could not start, which ends the start of the server.

        Later on, what its replacement could not do may succeed the next time.
        """
        with self._changed:
            if member.failure is None or not self._is_started:
                return member.failure is not None
            failure, member.failure = member.failure, None
        _log.error("worker %d could not start: %s", member.index, failure.message)
        return False

    def _run(self, member: _Member) -> int:
        """Run one process to its end, and return its exit code."""
        with closing(
            Shared.create("headrace-worker-table", WorkerTable.size(self._arena.capacity))
        ) as worker_table:
            ours, theirs = socket.socketpair()
            connection = Connection(ours.detach())
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - this program itself
                    [sys.executable, "-m", "headrace.server.process.worker", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
            try:
                self._serve(member, process, connection, worker_table)
            finally:
                connection.close()
                with self._changed:
                    member.process, member.session, member.stream_count = None, None, None
                    member.streams = []
                    self._changed.notify_all()
                # The process has no socket any more, so it is about to end.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_TIMEOUT_S)
                process.kill()
                code = process.wait()
                self._sum.end(member.index)
        return code

    def _serve(
        self,
        member: _Member,
        process: subprocess.Popen[bytes],
        connection: Connection,
        worker_table: Shared,
    ) -> None:
        """Handle a worker's requests until it ends."""
        session = Session(
            connection,
            cache=self._cache,
            sources=self._sources,
            windows=self._windows,
            needs=self._needs,
            worker_table=WorkerTable(worker_table.map()),
            on_message=lambda message: self._note(member, message),
        )
        memory = (self._arena.shared, self._arena.header, worker_table)
        config = _config(self._config, self.addresses, self.health_address)
        session.post(
            Start(config, self._source, (memory[0].size, memory[1].size, memory[2].size)),
            *memory,
        )
        with self._changed:
            member.process, member.session = process, session
        if self._ending.is_set():
            process.kill()
        session.serve()

    def _note(self, member: _Member, message: ToSupervisor) -> None:
        with self._changed:
            match message:
                case Ready():
                    member.stream_count = 0
                    member.reported_at = time.monotonic()
                case CannotStart(error):
                    member.failure = error
                case Report(stream_count, metrics, streams):
                    member.stream_count = stream_count
                    member.streams = [
                        {**row, "number": f"{member.index}.{row['number']}"} for row in streams
                    ]
                    member.reported_at = time.monotonic()
                    self._sum.report(member.index, metrics)
                case _:
                    raise AssertionError(message)
            self._changed.notify_all()

    def _kill_silent(self) -> None:
        """Kill serving workers that have sent nothing for too long; they are replaced."""
        long_ago = time.monotonic() - SILENCE_S
        with self._changed:
            for member in self._members:
                is_silent = member.stream_count is not None and member.reported_at < long_ago
                if is_silent and member.process is not None:
                    _log.error(
                        "worker %d has said nothing for %.0f s; it is killed",
                        member.index,
                        SILENCE_S,
                    )
                    member.process.kill()
                    member.stream_count = None

    def _spread(self) -> None:
        spread = Rebalance()
        while not self._ending.wait(_TICK_S):
            self._kill_silent()
            with self._changed:
                counts = {
                    member.index: member.stream_count
                    for member in self._members
                    if member.stream_count is not None
                }
            for index, count in spread.excess(counts, time.monotonic()).items():
                session = self._members[index].session
                if session is not None:
                    session.post(EndStreams(count))


def start_supervisor(config: ServerConfig, *, source: ConfigSource | None = None) -> Supervisor:
    """Start a server of ``config.workers`` processes.

    Raises:
        ConfigurationError: An address cannot be bound, or is a unix socket.
        HeadraceError: A dataset cannot be opened.
    """
    listened = (*config.addresses, config.health_listen)
    unix = [address for address in listened if address.startswith("unix:")]
    if unix:
        raise ConfigurationError(
            f"workers cannot share {unix[0]}: only ports can be shared; give HOST:PORT, or serve "
            "with one process"
        )
    supervisor = Supervisor(config, source=source)
    try:
        supervisor.start()
    except BaseException:
        supervisor.stop()
        raise
    return supervisor


def _config(config: ServerConfig, addresses: tuple[str, ...], health_address: str) -> ServerConfig:
    """Return the settings of one worker."""
    return replace(
        config,
        listen=addresses,
        health_listen=health_address,
        metrics_listen="",
        cache_dir="",
        # Each worker divides the prefetch budget by its number of streams.
        cache_bytes=max(1, config.cache_bytes // config.workers),
        max_streams=math.ceil(config.max_streams / config.workers),
        payload_bytes=max(1, config.payload_bytes // config.workers),
        plugs=tuple(each.of_worker(config.workers) for each in config.plugs),
        workers=0,
    )
