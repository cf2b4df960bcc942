"""Tests of a server of several processes: one cache, even streams, a killed worker."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.client import Mixture, MixtureEntry, Order, RemoteDataset, Transport
from headrace.errors import ConfigurationError, NotADatasetError
from headrace.server import ServerConfig
from headrace.server.workers.supervisor import Supervisor, start_supervisor
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.no_threads import no_threads
from support.served import failure_of, messages_of, read_until_failure

_SAMPLES = 2048
_IMAGE_BYTES = 16 * 1024
_WORKERS = 4
_EPOCHS = 4
_TIMEOUT_S = 120.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 32 MiB in some hundreds of blocks; images tell which sample they are of."""
    place = str(tmp_path_factory.mktemp("shared"))
    numbers = np.arange(_SAMPLES)
    images = np.random.default_rng(0).integers(0, 256, (_SAMPLES, _IMAGE_BYTES), np.uint8)
    images[:, :2] = images[:, -2:] = numbers.astype("<u2")[:, None].view(np.uint8)
    image = pa.FixedSizeListArray.from_arrays(pa.array(images.reshape(-1)), _IMAGE_BYTES)
    table = pa.table({"number": pa.array(numbers), "image": image})
    write_dataset(place, table, shard_samples=[_SAMPLES // 8] * 8, block_bytes=1 << 16)
    return place


@pytest.fixture(scope="module")
def supervisor(url: str) -> Iterator[Supervisor]:
    """A server of four workers whose cache holds everything."""
    config = ServerConfig(
        datasets={"shared": url},
        listen="127.0.0.1:0",
        metrics_listen="127.0.0.1:0",
        workers=_WORKERS,
        cache_bytes=96 << 20,
        log_level="warning",
    )
    with start_supervisor(config) as started:
        yield started


class _Rank(threading.Thread):
    """Reads one rank's batches for some epochs, or until its time is over."""

    def __init__(self, address: str, rank: int, world_size: int, *, epochs: int) -> None:
        super().__init__(name=f"test-rank-{rank}")
        self.batches = RemoteDataset(
            address,
            "shared",
            batch_size=16,
            seed=5,
            order=Order(shuffle_samples=256),
            rank=rank,
            world_size=world_size,
            # So that the stream is open while batches are read.
            transport=Transport(prefetch_bytes=1 << 20),
        )
        self.epochs = epochs
        self.numbers: list[int] = []
        self.batch_count = 0
        self.over = threading.Event()
        self.may_hurry = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self.epochs):
                if not self.over.is_set():
                    self._read_epoch()
        except BaseException as error:  # noqa: BLE001 - for the test, which looks at it
            self.failure = error

    def _read_epoch(self) -> None:
        for batch in self.batches:
            numbers, images = np.asarray(batch["number"]), np.asarray(batch["image"])
            ends = np.ascontiguousarray(images.reshape(len(numbers), -1)[:, [0, 1, -2, -1]])
            assert np.array_equal(ends.view("<u2"), np.stack([numbers, numbers], 1))
            self.numbers += numbers.tolist()
            self.batch_count += 1
            # As a trainer takes its time; many ranks share few processors here.
            if not self.may_hurry.is_set():
                self.over.wait(0.02)
            if self.over.is_set():
                return


def _eventually(condition: Callable[[], bool]) -> bool:
    """Wait until something that other processes bring about holds."""
    pause = threading.Event()
    for _ in range(int(_TIMEOUT_S / 0.05)):
        if condition():
            return True
        pause.wait(0.05)
    return False


def _metric(supervisor: Supervisor, name: str) -> float:
    with urlopen(f"http://{supervisor.metrics_address}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def test_streams_spread_evenly(supervisor: Supervisor) -> None:
    """Eight connections, which the kernel gives out at random, end up two on each of four."""
    ranks = [_Rank(supervisor.address, rank, 8, epochs=10_000) for rank in range(8)]
    for rank in ranks:
        rank.start()

    is_even = _eventually(
        lambda: any(rank.failure for rank in ranks) or (2,) * _WORKERS == supervisor.stream_counts
    )
    for rank in ranks:
        rank.over.set()
    for rank in ranks:
        rank.join(_TIMEOUT_S)

    assert [None] * 8 == [rank.failure for rank in ranks]
    assert is_even


def test_a_killed_worker_costs_nothing(supervisor: Supervisor) -> None:
    """Its streams go on at others, which notice nothing; it is replaced, and metrics still add up.

    Every sample comes exactly once, from one fetch of each block, however many processes read.
    """
    ranks = [_Rank(supervisor.address, rank, 4, epochs=_EPOCHS) for rank in range(4)]
    before = _metric(supervisor, "headrace_sent_samples_total")
    for rank in ranks:
        rank.start()
    assert _eventually(lambda: all(rank.batch_count >= 8 for rank in ranks))
    assert _eventually(lambda: sum(count or 0 for count in supervisor.stream_counts) >= 4)

    counts = supervisor.stream_counts
    victim = next(index for index, count in enumerate(counts) if count)
    pid = supervisor.worker_pids[victim]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for rank in ranks:
        rank.may_hurry.set()
    for rank in ranks:
        rank.join(_TIMEOUT_S)
        rank.over.set()

    assert [None] * 4 == [rank.failure for rank in ranks]
    assert sorted([*range(_SAMPLES)] * _EPOCHS) == sorted(n for rank in ranks for n in rank.numbers)
    assert _eventually(lambda: None not in supervisor.worker_pids)
    assert pid not in supervisor.worker_pids
    assert _WORKERS == len(supervisor._cache._slots.worker_tables)
    assert _eventually(
        lambda: _metric(supervisor, "headrace_sent_samples_total") >= before + _SAMPLES
    )
    assert 0 == int(supervisor._cache._slots.pins.sum())
    block_count = next(iter(supervisor._sources._open.values())).dataset.block_count
    assert block_count == _metric(supervisor, "headrace_store_fetched_blocks_total")


def test_a_worker_that_cannot_start_again_at_once_starts_later(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is away while a worker is replaced does not leave the server without it."""
    place, away = tmp_path / "here", tmp_path / "away"
    shutil.copytree(url, place)
    config = ServerConfig(datasets={"shared": str(place)}, listen="127.0.0.1:0", workers=2)
    with start_supervisor(config) as supervisor:
        pid = supervisor.worker_pids[0]
        assert pid is not None
        place.rename(away)
        os.kill(pid, signal.SIGKILL)
        has_failed = _eventually(lambda: "could not start" in caplog.text)
        away.rename(place)

        assert has_failed
        assert _eventually(lambda: None not in supervisor.worker_pids)


def test_a_moment_without_threads_costs_a_worker_but_not_for_good(url: str) -> None:
    """What it needs to be served cannot be had; another worker takes its place afterwards."""
    config = ServerConfig(datasets={"shared": url}, listen="127.0.0.1:0", workers=1)
    with start_supervisor(config) as supervisor:
        pid = supervisor.worker_pids[0]
        assert pid is not None
        with no_threads():
            os.kill(pid, signal.SIGKILL)
            assert _eventually(lambda: supervisor.worker_pids == (None,))
            children = _children(os.getpid())
            assert _eventually(lambda: _children(os.getpid()) != children)

        assert _eventually(lambda: None not in supervisor.worker_pids)
        assert 1 == len(supervisor._cache._slots.worker_tables)


@pytest.mark.long
def test_a_stopped_worker_is_replaced(supervisor: Supervisor) -> None:
    """One that is alive and says nothing, as after SIGSTOP, is killed, and another serves."""
    pids = supervisor.worker_pids
    stopped = pids[0]
    assert stopped is not None

    os.kill(stopped, signal.SIGSTOP)

    assert _eventually(lambda: stopped not in supervisor.worker_pids)
    assert _eventually(lambda: None not in supervisor.worker_pids)
    assert pids[1:] == supervisor.worker_pids[1:]


def test_workers_share_a_small_cache(url: str) -> None:
    """While blocks are evicted under the readers of two processes every sample is right."""
    config = ServerConfig(
        datasets={"shared": url},
        listen="127.0.0.1:0",
        workers=2,
        cache_bytes=10_000_000,
        log_level="warning",
    )
    with start_supervisor(config) as small:
        ranks = [_Rank(small.address, rank, 4, epochs=_EPOCHS) for rank in range(4)]
        for rank in ranks:
            rank.may_hurry.set()
            rank.start()
        for rank in ranks:
            rank.join(_TIMEOUT_S)
            rank.over.set()
        used_bytes = small.used_bytes
        evictions = small._arena._counts[0]

    assert [None] * 4 == [rank.failure for rank in ranks]
    assert sorted([*range(_SAMPLES)] * _EPOCHS) == sorted(n for rank in ranks for n in rank.numbers)
    assert 0 < used_bytes <= 10_000_000
    assert evictions > 0


_SERVE = """
import sys
from headrace.server import ServerConfig, serve
config = ServerConfig(datasets={"shared": sys.argv[1]}, listen="127.0.0.1:0", workers=2)
sys.exit(serve(config, on_ready=lambda address: print(address, flush=True)))
"""


def _children(pid: int) -> list[str]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [child for task in tasks for child in task.read_text().split()]


@pytest.mark.parametrize("cache_bytes", [1 << 19, 64 << 20], ids=["small", "large"])
def test_workers_find_the_blocks_of_many_datasets(tmp_path: Path, cache_bytes: int) -> None:
    """In a mixture each row is its sample, also of datasets of other sizes, and of no sample.

    The small cache holds a few of their blocks, and evicts them while others read.
    """
    counts = {f"d{index:02d}": [700, 3, 0, 61, 257][index % 5] for index in range(25)}
    for index, (name, count) in enumerate(counts.items()):
        values = np.repeat(np.arange(count) + 1000 * index, 32).astype(np.int64)
        row = pa.FixedSizeListArray.from_arrays(pa.array(values), 32)
        table = pa.table({"row": row})
        write_dataset(str(tmp_path / name), table, shard_samples=[count], block_bytes=1 << 12)
    config = ServerConfig(
        datasets={name: str(tmp_path / name) for name in counts},
        listen="127.0.0.1:0",
        workers=2,
        cache_bytes=cache_bytes,
        log_level="warning",
    )
    mixture = Mixture(
        tuple(MixtureEntry(name, repeat=float(count > 0)) for name, count in counts.items())
    )
    with start_supervisor(config) as started:
        datasets = [
            RemoteDataset(
                started.address, mixture, batch_size=64, seed=seed, epochs=1, end="uneven"
            )
            for seed in range(2)
        ]
        with ThreadPoolExecutor(len(datasets)) as threads:
            seen = list(threads.map(lambda each: [batch["row"] for batch in each], datasets))

    wanted = [1000 * at + number for at, n in enumerate(counts.values()) for number in range(n)]
    for batches in seen:
        rows = np.concatenate([np.asarray(batch) for batch in batches])
        assert (rows == rows[:, :1]).all()
        assert wanted == sorted(rows[:, 0].tolist())


def test_a_server_of_workers_drains(url: str) -> None:
    """`headrace serve --workers 2` ends its streams at SIGTERM, and all its processes, with 0."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        request = pb.ReadBatchesRequest(
            dataset="shared", global_batch_size=16, world_size=1, epoch_start=pb.EpochStart()
        )
        with grpc.insecure_channel(address) as channel:
            messages = messages_of(channel, request)
            next(messages)
            children = _children(process.pid)
            process.send_signal(signal.SIGTERM)
            _, failure = read_until_failure(messages)

        assert "DRAINING" == failure_of(failure)[1].reason
        assert 0 == process.wait(_TIMEOUT_S)
    assert 2 == len(children)
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_workers_end_with_their_supervisor(url: str) -> None:
    """A supervisor that is killed leaves no process behind."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE, url], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        children = _children(process.pid)
        process.kill()

    assert 2 == len(children)
    assert _eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in children))


def test_a_port_in_use_is_refused(supervisor: Supervisor, url: str) -> None:
    """A second server on the port is told so, though ports are shared by workers."""
    config = ServerConfig(datasets={"shared": url}, listen=supervisor.address, workers=1)

    with pytest.raises(ConfigurationError, match=r"cannot listen on 127.0.0.1:\d+: it is in use"):
        start_supervisor(config)


def test_a_unix_socket_cannot_be_shared(url: str, tmp_path: Path) -> None:
    """The refusal says what to give instead."""
    config = ServerConfig(datasets={"shared": url}, listen=f"unix:{tmp_path}/s", workers=1)

    with pytest.raises(ConfigurationError, match="give HOST:PORT"):
        start_supervisor(config)


def test_what_a_worker_cannot_open_ends_the_start(tmp_path: Path) -> None:
    """The error is that of a server of one process, and no process is left."""
    config = ServerConfig(datasets={"x": str(tmp_path)}, listen="127.0.0.1:0", workers=1)

    with pytest.raises(NotADatasetError):
        start_supervisor(config)
