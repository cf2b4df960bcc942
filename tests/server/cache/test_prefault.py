"""Claims about memory that is touched ahead of its use: none is changed, and none is wasted."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.server import ServerConfig, start_server
from headrace.server.cache.block_cache import BlockCache
from headrace.server.cache.memory import prefault
from headrace.server.cache.memory.arena import Arena, Memory, map_memory
from headrace.server.cache.memory.prefault import Prefault
from headrace.server.cache.memory.system_memory import memory_left, memory_limit
from headrace.server.kernels.loader import LOOPS
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers.supervisor import start_supervisor
from support.blocks import CountingStore, add_source
from support.datasets import write_dataset
from support.waiting import until

_MIB = 1 << 20

_STEP = prefault._STEP_BYTES


def _resident_bytes(memory: Memory) -> int:
    """Return how much of the memory the system has handed out."""
    pages = (ctypes.c_ubyte * -(-memory.array.size // mmap.PAGESIZE))()
    address = ctypes.c_void_p(memory.array.ctypes.data)
    assert 0 == ctypes.CDLL(None).mincore(address, ctypes.c_size_t(memory.array.size), pages)
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


@contextmanager
def _cache(store: CountingStore, *, is_shared: bool = False) -> Iterator[BlockCache]:
    """Open a cache of 32 MiB."""
    arena = Arena(32 * _MIB) if is_shared else None
    cache = BlockCache(32 * _MIB, fetch_threads=2, observer=Metrics(), arena=arena)
    with closing(arena) if arena else nullcontext(), closing(cache):
        yield cache
        store.gate.set()


def _touched(memory: Memory, wanted_bytes: int, *, used_bytes: int = 0) -> int:
    """Touch memory to the end, and return how much was."""
    lock = threading.Lock()
    thread = Prefault(
        lock,
        memory,
        used_bytes=lambda: used_bytes,
        wanted_bytes=lambda: wanted_bytes,
        is_awaited=lambda: False,
    )
    with lock:
        thread.start()
    assert until(lambda: thread._thread is None)
    return thread.touched_bytes


def test_no_byte_changes_that_others_write_meanwhile() -> None:
    """Memory that is touched while a thread fills it has what that thread wrote."""
    loops = LOOPS
    memory = map_memory(32 * _MIB).array
    written = np.random.default_rng(7).integers(0, 3, memory.size, np.uint8)
    writer = threading.Thread(target=np.copyto, args=(memory, written), name="test-writer")
    writer.start()
    loops.touch(memory)
    writer.join()
    loops.touch(memory)

    assert np.array_equal(written, memory)


@pytest.mark.parametrize(("wanted_mib", "touched_mib"), [(6, 8), (100, 32)])
def test_memory_is_touched_as_far_as_the_datasets_can_fill_it(
    wanted_mib: int, touched_mib: int
) -> None:
    """What they cannot fill costs nothing, but for the rest of a step and of a huge page."""
    memory = map_memory(32 * _MIB)

    assert touched_mib * _MIB == _touched(memory, wanted_mib * _MIB)
    assert touched_mib * _MIB <= _resident_bytes(memory) <= (touched_mib + 4) * _MIB


def test_memory_that_has_blocks_is_not_touched_again() -> None:
    """The thread begins behind the blocks."""
    memory = map_memory(32 * _MIB)
    _touched(memory, 20 * _MIB, used_bytes=16 * _MIB)

    assert _resident_bytes(memory) <= 8 * _MIB


def test_half_of_what_is_left_stays_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where little memory is left, the rest is touched as the cache fills."""
    monkeypatch.setattr(prefault, "memory_left", lambda: 2 * _STEP + 1)

    assert 2 * _STEP == _touched(map_memory(32 * _MIB), 32 * _MIB)


@pytest.mark.parametrize("is_shared", [False, True])
def test_nothing_is_touched_while_a_stream_waits(
    monkeypatch: pytest.MonkeyPatch, *, is_shared: bool
) -> None:
    """The thread pauses as long as a stream waits for blocks, and then goes on."""
    looked: list[int] = []
    monkeypatch.setattr(prefault, "_PAUSE_S", 0.001)

    def left() -> int:
        looked.append(1)
        return 1 << 40

    monkeypatch.setattr(prefault, "memory_left", left)
    store, asked = CountingStore(), np.array([1])
    store.gate.clear()
    with _cache(store, is_shared=is_shared) as cache:
        source, waiter = add_source(cache, store), cache.readers.waiter()
        cache.begin_demand(source, asked, waiter)
        add_source(cache, store, memory_bytes=8 * _MIB)
        assert until(lambda: len(looked) > 3)
        assert 0 == cache._prefault.touched_bytes
        cache.end_demand(source, asked, waiter)

        assert until(lambda: cache._prefault.touched_bytes == 8 * _MIB)
        assert 8 * _MIB <= _resident_bytes(cache.memory) <= 12 * _MIB


def test_a_cache_that_closes_does_not_wait_for_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread ends where it is, even while a stream waits."""
    monkeypatch.setattr(prefault, "_PAUSE_S", 3600.0)
    store, asked = CountingStore(), np.array([1])
    with _cache(store) as cache:
        source, waiter = add_source(cache, store), cache.readers.waiter()
        cache.begin_demand(source, asked, waiter)
        add_source(cache, store, memory_bytes=8 * _MIB)
        thread = cache._prefault._thread
    assert thread is not None
    assert not thread.is_alive()


def test_memory_is_touched_for_datasets_that_come_later() -> None:
    """And none for those that are gone."""
    store = CountingStore()
    with _cache(store) as cache:
        first = add_source(cache, store, memory_bytes=8 * _MIB)
        assert until(lambda: cache._prefault.touched_bytes == 8 * _MIB)
        add_source(cache, store, memory_bytes=8 * _MIB)
        assert until(lambda: cache._prefault.touched_bytes == 16 * _MIB)
        cache.remove_source(first)
        add_source(cache, store, memory_bytes=8 * _MIB)
        assert until(lambda: cache._prefault._thread is None)

        assert 16 * _MIB == cache._prefault.touched_bytes


@pytest.mark.parametrize("workers", [0, 1])
def test_a_server_touches_what_its_dataset_fills(tmp_path: Path, workers: int) -> None:
    """Before anybody reads, with one process and with several."""
    table = pa.table({"x": np.zeros(10 * _MIB // 8)})
    write_dataset(str(tmp_path), table, shard_samples=[len(table)], block_bytes=_MIB)
    config = ServerConfig(
        datasets={"x": str(tmp_path)}, listen="127.0.0.1:0", cache_bytes=64 * _MIB, workers=workers
    )
    with (start_supervisor if workers else start_server)(config) as server:
        memory = server._cache.memory
        assert until(lambda: _resident_bytes(memory) >= 10 * _MIB)
        assert until(lambda: server._cache._prefault._thread is None)

        assert _resident_bytes(memory) <= 16 * _MIB


def test_the_least_that_a_limit_leaves_counts(tmp_path: Path) -> None:
    """Version 2: of the machine, of a group, and of those around it; ``max`` is none."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    5000 kB\n")
    (tmp_path / "cgroup").write_text("0::/pod/server\n")
    inner = tmp_path / "fs" / "pod" / "server"
    inner.mkdir(parents=True)
    places = tmp_path / "cgroup", tmp_path / "fs"
    (inner / "memory.max").write_text("max\n")
    assert memory_limit(*places) is None
    assert 5_120_000 == memory_left(*places, tmp_path / "meminfo")
    (inner.parent / "memory.max").write_text("4000000\n")
    (inner.parent / "memory.current").write_text("1000000\n")
    assert 4_000_000 == memory_limit(*places)
    assert 3_000_000 == memory_left(*places, tmp_path / "meminfo")
    (inner / "memory.max").write_text("3000000\n")
    (inner / "memory.current").write_text("3000001\n")
    assert 3_000_000 == memory_limit(*places)
    assert 0 == memory_left(*places, tmp_path / "meminfo")


def test_limits_of_version_1_are_read_too(tmp_path: Path) -> None:
    """Where no limit is set there is a number beyond all memory."""
    (tmp_path / "meminfo").write_text("MemAvailable:    5000 kB\n")
    (tmp_path / "cgroup").write_text("5:memory:/docker/x\n4:cpu:/docker/x\n")
    inner = tmp_path / "fs" / "memory" / "docker" / "x"
    inner.mkdir(parents=True)
    places = tmp_path / "cgroup", tmp_path / "fs"
    (inner / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert memory_limit(*places) is None
    (inner / "memory.limit_in_bytes").write_text("5000000\n")
    (inner / "memory.usage_in_bytes").write_text("2000000\n")
    assert 5_000_000 == memory_limit(*places)
    assert 3_000_000 == memory_left(*places, tmp_path / "meminfo")
    assert 0 == memory_left(*places, tmp_path / "missing")
