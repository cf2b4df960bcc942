"""Tests of memory that processes share, and of the sums that a supervisor makes."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory import arena as arenas
from headrace.server.cache.memory import eviction
from headrace.server.cache.memory.arena import Arena, ArenaHeader
from headrace.server.cache.memory.shared_memory import Shared, SourceTables, WorkerTable
from headrace.server.cache.source import Source
from headrace.server.layout.block_layout import block_layout
from headrace.server.layout.wire_columns import wire_column
from headrace.server.telemetry.metrics import Metrics
from headrace.server.telemetry.metrics_sum import MetricsSum
from headrace.server.workers.rebalance import Rebalance
from support.blocks import CountingStore, demand


def test_workers_cannot_write_to_the_arena() -> None:
    """What the supervisor writes is seen; a sealed memory cannot be mapped to write to."""
    shared = Shared.create("test", 8192)
    memory = shared.map()
    shared.seal()
    seen = shared.map_read_only()

    memory[5] = 7

    assert 7 == seen[5]
    with pytest.raises(ValueError, match="read-only"):
        seen[5] = 8
    with pytest.raises(PermissionError):
        mmap.mmap(shared.fd, shared.size, mmap.MAP_SHARED)
    shared.close()


_SharedCache = tuple[BlockCache, Source, Arena]


@contextmanager
def _shared_cache(store: CountingStore, size: int) -> Iterator[_SharedCache]:
    arena = Arena(size)
    cache = BlockCache(size, fetch_threads=2, observer=Metrics(), arena=arena)
    layout = block_layout([wire_column(pa.field("x", pa.int64(), nullable=False))])
    tables = np.zeros(
        SourceTables.size(block_count=1000, part_count=1, capacity=arena.capacity), np.uint8
    )
    source = cache.add_source(
        store,
        layout,
        block_count=1000,
        tables=SourceTables.lie_in(tables, block_count=1000, part_count=1),
    )
    yield cache, source, arena
    cache.close()
    arena.close()


def test_a_block_on_a_desk_stays() -> None:
    """A block that a worker has pinned outlives any pressure, and goes when it is done."""
    store = CountingStore()
    with _shared_cache(store, 3 * 900) as (cache, source, arena):
        worker_table = WorkerTable(np.zeros(WorkerTable.size(arena.capacity), np.uint8))
        cache.add_worker(worker_table)
        waiter = cache.readers.waiter()

        demand(cache, source, [1], waiter)
        worker_table.pins[source.slot_of[1]] += 1
        for block in range(10, 30):
            demand(cache, source, [block], waiter)
        assert source.is_cached(np.array([1])).all()
        cache.remove_worker(worker_table)
        demand(cache, source, list(range(30, 34)), waiter)

        assert not source.is_cached(np.array([1])).any()
        assert [1] == [block for block in store.reads if block == 1]
        assert ArenaHeader(arena.header).evictions >= 20


def test_a_block_that_a_worker_reads_late_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block whose time has passed in a worker's table is needed now, and none sooner."""
    monkeypatch.setattr(eviction, "_LATE_S", 300.0)
    store = CountingStore()
    with _shared_cache(store, 3 * 900) as (cache, source, arena):
        worker_table = WorkerTable(np.zeros(WorkerTable.size(arena.capacity), np.uint8))
        cache.add_worker(worker_table)
        waiter = cache.readers.waiter()

        demand(cache, source, [1], waiter)
        worker_table.next_use[source.slot_of[1]] = time.monotonic()
        for block in range(10, 30):
            demand(cache, source, [block], waiter)

        assert source.is_cached(np.array([1])).all()


def test_more_blocks_than_slots_evict(monkeypatch: pytest.MonkeyPatch) -> None:
    """An arena with room for 1,200 blocks and slots for 256 keeps fewer, each of them right."""
    monkeypatch.setattr(arenas, "_SLOT_BYTES", 4096)
    with _shared_cache(CountingStore(), 1_000_000) as (cache, source, arena):
        cache.add_worker(WorkerTable(np.zeros(WorkerTable.size(arena.capacity), np.uint8)))
        waiter = cache.readers.waiter()

        for start in range(0, 900, 50):
            wanted = list(range(start, start + 50))
            assert wanted == demand(cache, source, wanted, waiter)

        assert 200 < cache._slots.count < 256 == arena.capacity


def test_the_start_of_a_server_is_that_of_its_oldest_process() -> None:
    """Times are not added, or a server of two processes would start in the year 2083."""
    total = MetricsSum()
    for began in (30.0, 10.0, 20.0):
        registry = CollectorRegistry()
        Gauge("process_start_time_seconds", "x", registry=registry).set(began)
        total.report(began, list(registry.collect()))

    assert 10.0 == total.registry.get_sample_value("process_start_time_seconds")


def test_metrics_are_the_sum() -> None:
    """Metrics add up by label; counters of the dead stay, gauges and those of streams go."""
    total = MetricsSum()
    registries = [CollectorRegistry(), CollectorRegistry()]
    total.add_registry(registries[0])
    for factor, registry in enumerate(registries, 1):
        Counter("sent", "x", ["who"], registry=registry).labels("a").inc(factor)
        Gauge("open", "x", registry=registry).set(factor)
        Counter("headrace_stream_waits", "x", registry=registry).inc(factor)
        Histogram("wait", "x", registry=registry, buckets=(1.0,)).observe(factor)
    total.report("worker", list(registries[1].collect()))

    def values() -> tuple[float | None, ...]:
        read = total.registry.get_sample_value
        return (
            read("sent_total", {"who": "a"}),
            read("open"),
            read("headrace_stream_waits_total"),
            read("wait_sum"),
            read("wait_bucket", {"le": "1.0"}),
        )

    assert (3, 3, 3, 3, 1) == values()
    total.end("worker")
    assert (3, 1, 1, 3, 1) == values()
    total.report("worker", list(registries[1].collect()))
    assert (5, 3, 3, 5, 1) == values()


def test_only_uneven_workers_send_streams_away() -> None:
    """What is above the fair part goes, soon and then ever more rarely; near even is even."""
    spread = Rebalance()
    assert {} == spread.excess({0: 2, 1: 1, 2: 2}, 0.0)
    assert {} == spread.excess({0: 6, 1: 2, 2: 0, 3: 0}, 0.5)

    assert {0: 4, 1: 0} == spread.excess({0: 6, 1: 2, 2: 0, 3: 0}, 1.5)
    assert {} == spread.excess({0: 6, 1: 2, 2: 0, 3: 0}, 2.0)
    times = [second for second in range(3, 400) if spread.excess({0: 6, 1: 2}, float(second))]
    pauses = np.diff(times)
    assert pauses[0] <= 3
    assert 55 <= pauses[-1] <= 61


def test_a_desk_has_room_for_all() -> None:
    """Pins, uses and owners of all slots lie side by side, written and read by two processes."""
    shared = Shared.create("test", WorkerTable.size(300))
    ours, theirs = WorkerTable(shared.map()), WorkerTable(shared.map())

    def write() -> None:
        ours.pins[:] = 1
        ours.last_use[:] = 2
        ours.next_use[:] = 3.5
        ours.owner[:] = 4

    thread = threading.Thread(target=write, name="test")
    thread.start()
    thread.join(60)

    assert [300 * 1, 300 * 2, 300 * 3.5, 300 * 4] == [
        column.sum() for column in (theirs.pins, theirs.last_use, theirs.next_use, theirs.owner)
    ]
    shared.close()
