"""Workers that share a cache which is too small read as few times the bytes as one process.

First how it could go wrong: a worker that dies with windows open.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest

from field.test_soft_edge import EDGE
from headrace.server import ServerConfig
from headrace.server.workers.supervisor import Supervisor, start_supervisor
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.needs import needed_cache
from support.running import channel_of
from support.served import TIMEOUT_S, messages_of, read
from support.threads import at_once

_RANKS, _BATCH = 4, 256
# So much that what is on the way to a rank, about 1 MiB, is a small part of a window.
_SAMPLES, _SAMPLE_BYTES, _BLOCK_BYTES = 1 << 14, 4096, 1 << 16
_CHANNEL = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 14),
    # A connection for each rank, as if they were processes: these are given out to workers.
    ("grpc.use_local_subchannel_pool", 1),
)
# Epoch 1 is read slowly, until streams are spread over the workers; then some are measured.
_FIRST, _LAST = 2, 3


@contextmanager
def _workers(urls: dict[str, Path], cache_bytes: int) -> Iterator[Supervisor]:
    config = ServerConfig(
        datasets={name: str(url) for name, url in urls.items()},
        listen="127.0.0.1:0",
        cache_bytes=cache_bytes,
        workers=2,
        log_level="error",
    )
    with start_supervisor(config) as supervisor:
        yield supervisor


class _Ranks:
    """The ranks of one or several jobs, which keep in step batch by batch.

    Attributes:
        digests: The digests of each rank's batches, by epoch and step.
    """

    def __init__(self, address: str, requests: list[pb.ReadBatchesRequest]) -> None:
        self.digests: list[dict[tuple[int, int], int]] = [{} for _ in requests]
        self._address = address
        self._requests = requests
        self._barrier = threading.Barrier(len(requests), timeout=TIMEOUT_S)

    def read(self, each_step: Callable[[int, int], None]) -> None:
        """Read all epochs; after each batch, one rank tells the epoch and the batch."""
        ranks = range(len(self._requests))
        at_once(lambda rank: self._run(rank, each_step), ranks, timeout_s=600)

    def _run(self, rank: int, each_step: Callable[[int, int], None]) -> None:
        request, own = self._requests[rank], self.digests[rank]
        last = None
        with grpc.insecure_channel(self._address, _CHANNEL) as channel:
            while last is None or last.epoch <= _LAST:
                try:
                    for message in messages_of(channel, request):
                        if not message.HasField("batch"):
                            continue
                        last = message.batch
                        if last.epoch > _LAST:
                            break
                        assert (last.epoch, last.step) not in own
                        own[last.epoch, last.step] = last.payload_xxh3
                        request.resume_token = last.resume_token
                        if self._barrier.wait() == 0:
                            each_step(last.epoch, last.position // _BATCH)
                        self._barrier.wait()
                except grpc.RpcError as error:
                    code = error.code()
                    assert code is grpc.StatusCode.UNAVAILABLE, error.details()  # noqa: PT017 - others must fail


def _requests(name: str) -> list[pb.ReadBatchesRequest]:
    return [
        pb.ReadBatchesRequest(
            dataset=name,
            order=pb.OrderSpec(seed=3, run_bytes=2 * _BLOCK_BYTES, unit=_BATCH),
            global_batch_size=_BATCH,
            world_size=_RANKS,
            rank=rank,
            epoch_start=pb.EpochStart(epoch=1),  # epoch 0 has a ramp
            epoch_count=_LAST + 1,
            with_ids=True,
        )
        for rank in range(_RANKS)
    ]


def _expected(url: Path, requests: list[pb.ReadBatchesRequest]) -> list[dict[tuple[int, int], int]]:
    """Return what a cache that holds everything gives to each rank."""
    found = []
    with channel_of({"data": str(url)}, cache_bytes=1 << 27) as channel:
        for request in requests:
            own = pb.ReadBatchesRequest()
            own.CopyFrom(request)
            own.epoch_count = _LAST
            headers = [batch.header for batch in read(channel, own).batches]
            found.append({(each.epoch, each.step): each.payload_xxh3 for each in headers})
    return found


def _reads(supervisor: Supervisor, name: str) -> float:
    value = supervisor._metrics.registry.get_sample_value(
        "headrace_store_fetched_blocks_total", {"dataset": name}
    )
    return value or 0.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that is shuffled as a whole."""
    place = tmp_path_factory.mktemp("shuffled")
    values = np.random.default_rng(0).integers(0, 256, _SAMPLES * _SAMPLE_BYTES, np.uint8)
    x = pa.FixedSizeListArray.from_arrays(pa.array(values), _SAMPLE_BYTES)
    write_dataset(
        str(place),
        pa.table({"x": x, "number": np.arange(_SAMPLES)}),
        shard_samples=[_SAMPLES // 4] * 4,
        block_bytes=_BLOCK_BYTES,
    )
    return place


def _needed(url: Path) -> int:
    return needed_cache(str(url), shuffle_bytes=1 << 31)


def _pause_until(is_reached: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(TIMEOUT_S / 0.05)):
        if is_reached():
            return
        pause.wait(0.05)
    raise AssertionError("not reached in time")


def test_a_worker_that_dies_inside_a_window_leaves_nothing_open(url: Path) -> None:
    """Its ranks go on at the other one with the same samples, and its windows go with it."""
    requests = _requests("data")
    expected = _expected(url, requests)
    killed: list[int] = []
    with _workers({"data": url}, _needed(url) // 2) as supervisor:
        pause = threading.Event()

        def each_step(epoch: int, batch: int) -> None:
            if epoch < _FIRST:
                pause.wait(0.05)
            if (epoch, batch) == (_FIRST, 20):
                counts = supervisor.stream_counts
                victim = max(range(2), key=lambda index: counts[index] or 0)
                pid = supervisor.worker_pids[victim]
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

        ranks = _Ranks(supervisor.address, requests)
        ranks.read(each_step)
        cache, windows = supervisor._cache, supervisor._windows
        _pause_until(lambda: None not in supervisor.worker_pids)
        pids = [pid for pid in supervisor.worker_pids if pid is not None]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        # Freed a moment after they are over.
        _pause_until(lambda: not windows._open and not cache._windows)

        assert killed
        assert expected == ranks.digests
        assert not [each for each in cache._sources.values() if each.whole is not None]
        assert not supervisor._needs._needs
        assert 0 == int(cache._slots.pins.sum())


@pytest.mark.parametrize("part", [0.9, pytest.param(0.75, marks=pytest.mark.long), 0.5])
def test_the_edge_is_soft_for_workers(url: Path, part: float) -> None:
    """Ranks that are spread over two workers share windows, and get the same samples."""
    requests = _requests("data")
    expected = _expected(url, requests)
    counted: list[float] = []
    with _workers({"data": url}, int(part * _needed(url))) as supervisor:
        pause = threading.Event()

        def each_step(epoch: int, batch: int) -> None:
            if epoch < _FIRST:
                pause.wait(0.05)
            elif epoch == _FIRST and not batch:
                counted.append(_reads(supervisor, "data"))

        ranks = _Ranks(supervisor.address, requests)
        ranks.read(each_step)
        streams = supervisor.stream_counts
        counted.append(_reads(supervisor, "data"))
    with open_dataset(str(url)) as dataset:
        epochs = (counted[1] - counted[0]) / dataset.block_count / (_LAST - _FIRST + 1)

    assert expected == ranks.digests
    assert epochs <= EDGE[part], streams
