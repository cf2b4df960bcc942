"""Tests of a worker's side of the cache, over a real connection."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DrainingError, ServerUnreachableError
from headrace.server.cache.memory.arena import Arena, ArenaHeader, Memory
from headrace.server.cache.memory.shared_memory import WorkerTable
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import wire_column
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers import worker_cache
from headrace.server.workers.messages import Opened, OpenSource
from headrace.server.workers.worker_cache import WorkerCache
from support.blocks import CountingStore

_WAIT_S = 60


def _add(cache: WorkerCache) -> Source:
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    origin = ("d", DatasetConfig(url="memory:"), "0" * 32)
    return cache.add_source(CountingStore(), layout, block_count=1, origin=origin)


@contextmanager
def _connected() -> Iterator[tuple[Connection, WorkerCache, ThreadPoolExecutor]]:
    """A worker's cache, and the end of its supervisor."""
    supervisor, worker = Pipe()
    with closing(worker), closing(Arena(1 << 20)) as arena:
        worker_table = WorkerTable(np.zeros(WorkerTable.size(arena.capacity), np.uint8))
        cache = WorkerCache(
            worker,
            arena=Memory(arena.shared.map_read_only()),
            header=ArenaHeader(arena.header),
            worker_table=worker_table,
            observer=Metrics(),
        )
        with ThreadPoolExecutor(2) as threads, closing(supervisor), closing(cache):
            yield supervisor, cache, threads


def _asked(supervisor: Connection) -> int:
    assert supervisor.poll(_WAIT_S)
    asked = supervisor.recv()
    assert isinstance(asked, OpenSource)
    return asked.request


def test_a_descriptor_that_does_not_arrive_ends_all_waits() -> None:
    """As when the worker may open no more files: it loses its supervisor, and waits for nothing."""
    with _connected() as (supervisor, cache, threads):
        listening = threads.submit(cache.listen, lambda _: None)
        adding = threads.submit(_add, cache)
        # A descriptor would have come with the first byte of what follows.
        supervisor.send(Opened(_asked(supervisor), (0,), 4096))
        supervisor.send("no descriptor")

        with pytest.raises(RuntimeError):
            listening.result(_WAIT_S)
        with pytest.raises(DrainingError):
            adding.result(_WAIT_S)
        with pytest.raises(DrainingError):
            _add(cache)


def test_a_supervisor_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Opening ends with its deadline, and an answer that comes later is dropped."""
    monkeypatch.setattr(worker_cache, "_OPEN_TIMEOUT_S", 0.1)
    with _connected() as (supervisor, cache, threads):
        listening = threads.submit(cache.listen, lambda _: None)
        with pytest.raises(ServerUnreachableError, match="did not answer within"):
            _add(cache)
        late = _asked(supervisor)
        with TemporaryFile() as file:
            supervisor.send(Opened(late, (0,), 4096))
            send_handle(supervisor, file.fileno(), os.getpid())
            inode = os.fstat(file.fileno()).st_ino
        supervisor.send(Opened(late + 1, error=DrainingError("for no request of this worker")))
        supervisor.close()

        listening.result(_WAIT_S)
        descriptors = [each for each in Path("/proc/self/fd").iterdir() if each.exists()]
        assert inode not in {each.stat().st_ino for each in descriptors}
