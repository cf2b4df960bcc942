"""Tests of a worker's side of the cache, over a real connection."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import Pipe

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DrainingError
from headrace.server.cache.memory.arena import Arena, ArenaHeader, Memory
from headrace.server.cache.memory.shared_memory import Desk
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import wire_column
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers.messages import Opened, OpenSource
from headrace.server.workers.worker_cache import WorkerCache
from support.blocks import CountingStore

_WAIT_S = 60


def _add(cache: WorkerCache) -> Source:
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    origin = ("d", DatasetConfig(url="memory:"), "0" * 32)
    return cache.add_source(CountingStore(), layout, block_count=1, origin=origin)


def test_a_descriptor_that_does_not_arrive_ends_all_waits() -> None:
    """As when the worker may open no more files: it loses its supervisor, and waits for nothing."""
    supervisor, worker = Pipe()
    with closing(worker), closing(Arena(1 << 20)) as arena:
        desk = Desk(np.zeros(Desk.size(arena.capacity), np.uint8))
        cache = WorkerCache(
            worker,
            arena=Memory(arena.shared.map_read_only()),
            header=ArenaHeader(arena.header),
            desk=desk,
            observer=Metrics(),
        )
        with ThreadPoolExecutor(2) as threads, closing(supervisor), closing(cache):
            listening = threads.submit(cache.listen, lambda _: None)
            adding = threads.submit(_add, cache)
            assert supervisor.poll(_WAIT_S)
            asked = supervisor.recv()
            assert isinstance(asked, OpenSource)
            # A descriptor would have come with the first byte of what follows.
            supervisor.send(Opened(asked.request, (0,), 4096))
            supervisor.send("no descriptor")

            with pytest.raises(RuntimeError):
                listening.result(_WAIT_S)
            with pytest.raises(DrainingError):
                adding.result(_WAIT_S)
            with pytest.raises(DrainingError):
                _add(cache)
