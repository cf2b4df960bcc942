"""Run a worker, a server that uses its supervisor's cache.

It is started as `python -m headrace.server.process.worker FD`. It ends at once when its supervisor
ends; clients then continue elsewhere.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from queue import Empty, SimpleQueue
from typing import cast

from headrace.errors import HeadraceError
from headrace.server.batch.freed_memory import keep_freed_memory
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory.arena import ArenaHeader, Memory
from headrace.server.cache.memory.shared_memory import Shared, WorkerTable
from headrace.server.process.forced_end import end_by
from headrace.server.process.reload import Reloader
from headrace.server.rpc.listen import SHARED_PORT_OPTIONS
from headrace.server.rpc.server import Server
from headrace.server.settings.config_layers import ConfigSource
from headrace.server.settings.server_config import ServerConfig
from headrace.server.telemetry.logs import start_logging
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers.messages import (
    CannotStart,
    Drain,
    EndStreams,
    Ready,
    Reload,
    Report,
    Start,
    ToWorker,
)
from headrace.server.workers.worker_cache import WorkerCache

# How often streams and metrics are reported to the supervisor (arbitrary; a report takes
# milliseconds).
_REPORT_S = 0.5

_log = logging.getLogger(__name__)


class _Worker:
    """Handles the supervisor's messages."""

    def __init__(self, start: Start, connection: Connection, memory: list[Shared]) -> None:
        self.config = start.config
        self.source = start.source
        # A queue, since an event's lock may be held by what a signal's handler interrupts.
        self.asked: SimpleQueue[None] = SimpleQueue()
        self.is_lost = False
        self.reloader: Reloader | None = None
        self.metrics = Metrics()
        arena, header, worker_table = memory
        self.cache = WorkerCache(
            connection,
            arena=Memory(arena.map_read_only()),
            header=ArenaHeader(header),
            worker_table=WorkerTable(worker_table.map()),
            observer=self.metrics,
        )
        self.server = Server(
            self.config,
            # It has all the methods of a cache that streams use.
            cache=cast("BlockCache", self.cache),
            metrics=self.metrics,
            options=SHARED_PORT_OPTIONS,
        )

    def listen(self) -> None:
        """Handle the supervisor's messages; when it ends, so does the worker."""
        try:
            self.cache.listen(self._handle)
        finally:
            # Also after a failure: a worker that hears nothing is of no use; another replaces it.
            self.is_lost = True
            self.asked.put(None)

    def is_asked(self, *, within_s: float) -> bool:
        """Return whether it was asked to end, as soon as that is known."""
        try:
            self.asked.get(timeout=within_s)
        except Empty:
            return False
        return True

    def report(self) -> None:
        """Report streams and metrics to the supervisor."""
        metrics = list(self.metrics.registry.collect())
        streams = self.server.stream_rows() if self.config.page else []
        self.cache.send(Report(self.server.stream_count, metrics, streams))

    def apply(self, config: ServerConfig) -> bool:
        """Serve the datasets of a configuration that was read again."""
        return self.server.reload(
            replace(self.config, datasets=dict(config.datasets), item_nulls=config.item_nulls)
        )

    def _handle(self, message: ToWorker) -> None:
        match message:
            case EndStreams(count):
                self.server.end_some(count)
            case Reload() if self.reloader is not None:
                self.reloader.request()
            case Drain():
                self.asked.put(None)
            case _:
                pass


def main(fd: int) -> int:
    """Serve until told to end; return the exit code of the process."""
    connection = Connection(fd)
    # Ctrl-C reaches every process of the terminal; the supervisor decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_freed_memory()
    start = connection.recv()
    assert isinstance(start, Start)
    memory = [Shared(recv_handle(connection), size) for size in start.sizes]
    worker = _Worker(start, connection, memory)
    start_logging(worker.config.log_level, worker.config.log_format)
    signal.signal(signal.SIGTERM, lambda *_: worker.asked.put(None))
    threading.Thread(target=worker.listen, name="headrace-supervisor", daemon=True).start()
    try:
        worker.server.start()
    except HeadraceError as error:
        worker.cache.send(CannotStart(error))
        worker.server.stop()
        return 1
    worker.cache.send(Ready(worker.server.addresses))
    with ExitStack() as stack:
        if worker.source is not None:
            worker.reloader = stack.enter_context(_reloader(worker.source, worker))
        while not worker.is_asked(within_s=_REPORT_S):
            worker.report()
    if worker.is_lost:
        _log.error("the supervisor is gone; this worker ends")
        # Streams that are blocked in a send would delay an orderly end.
        os._exit(1)
    end_by(worker.config.drain_s)
    worker.server.drain()
    return 0


def _reloader(source: ConfigSource, worker: _Worker) -> Reloader:
    reloader = Reloader(source, worker.apply)
    # Apply what has changed since the supervisor started.
    reloader.request()
    return reloader


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
