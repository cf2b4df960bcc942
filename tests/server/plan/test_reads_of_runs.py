"""Tests of datasets larger than the cache: each block is fetched once an epoch, in whole runs."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.server import Server
from headrace.server.cache.fetch import slow_reads
from headrace.storage import OpenDataset
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.running import running
from support.s3 import S3
from support.served import read
from support.store_proxy import StoreProxy, store_proxied

_SAMPLES = 20_480
# The cache of a tenth holds just what is shuffled together.
_SHUFFLED = _SAMPLES // 10
# Two blocks.
_RUN_BYTES = 560
_BATCH = 128


@dataclass(frozen=True, slots=True)
class _Whole:
    """What came of an epoch through a cache that holds everything."""

    sample_ids: NDArray[np.int64]
    used_bytes: int
    fetches: float
    block_count: int


@pytest.fixture(scope="module")
def large_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of some thousands of blocks in 32 shards."""
    url = str(tmp_path_factory.mktemp("large"))
    _write(url)
    return url


@pytest.fixture(scope="module")
def whole(large_url: str) -> _Whole:
    """An epoch of it."""
    with running(large_url) as large:
        sample_ids = np.concatenate(read(large.channel, _request()).ids)
        return _Whole(
            sample_ids,
            large.server._cache.used_bytes,
            _fetches(large.server),
            _dataset(large.server).block_count,
        )


def _write(url: str) -> None:
    ids = np.arange(_SAMPLES)
    table = pa.table({"number": ids, "text": [f"sample {i:054d}" for i in ids]})
    write_dataset(url, table, shard_samples=[_SAMPLES // 32] * 32, block_bytes=280)


def _request(position: int = 0) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=3, shuffle_samples=_SHUFFLED, run_bytes=_RUN_BYTES),
        global_batch_size=_BATCH,
        world_size=1,
        epoch_start=pb.EpochStart(position=position),
        epoch_count=1,
        with_ids=True,
    )


def _dataset(server: Server) -> OpenDataset:
    return server._catalog.get("rich").dataset


def _fetches(server: Server) -> float:
    name, labels = "headrace_store_fetched_blocks_total", {"dataset": "rich"}
    return server._metrics.registry.get_sample_value(name, labels) or 0.0


def _fetched_bytes(proxy: StoreProxy) -> int:
    """Return the bytes of shards that were asked for."""
    ranges = [re.search(r"/part-.* bytes=(\d+)-(\d+)$", part) for part in proxy.seen]
    return sum(int(one[2]) - int(one[1]) + 1 for one in ranges if one)


def test_each_block_is_fetched_once_an_epoch(
    large_url: str, whole: _Whole, start: StartServer
) -> None:
    """Through a tenth of its size a dataset is read with 1.05 fetches of each block at most."""
    budget_bytes = whole.used_bytes // 10

    small = start(large_url, cache_bytes=budget_bytes)
    again = np.concatenate(read(small.channel, _request()).ids)

    assert whole.sample_ids.tolist() == again.tolist()
    assert small.server._cache.used_bytes <= budget_bytes
    assert whole.block_count == whole.fetches
    assert _fetches(small.server) <= 1.05 * whole.block_count


def test_bytes_of_a_store_are_those_of_the_blocks(
    s3: S3, whole: _Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From S3 too no byte is read twice, as counted before the store, from a resume on.

    The last fifth of an epoch, through a cache of a tenth of the dataset. A busy machine has slow
    reads, which are repeated; that is another test's.
    """
    monkeypatch.setattr(slow_reads, "_LEAST_S", 1e9)
    url, position = s3.url("large"), _SAMPLES - _SAMPLES // 5
    _write(url)
    with store_proxied(s3.weed.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running(url, cache_bytes=whole.used_bytes // 10) as small:
            sample_ids = np.concatenate(read(small.channel, _request(position)).ids)
            dataset = _dataset(small.server)
            read_blocks = np.unique(dataset.locate(sample_ids)[0])
            delivered = int(dataset.block_stored_bytes(read_blocks).sum())

    assert whole.sample_ids[position:].tolist() == sample_ids.tolist()
    assert 0 < _fetched_bytes(proxy) <= 1.05 * delivered


@pytest.mark.parametrize("count", [7, pytest.param(20, marks=pytest.mark.long)])
def test_streams_that_push_out_each_others_blocks_get_their_own_samples(
    large_url: str, whole: _Whole, start: StartServer, count: int
) -> None:
    """Three orders through a cache that holds half of what one of them shuffles.

    Blocks that a batch waits for go again before the last of them comes.
    """
    small = start(large_url, cache_bytes=whole.used_bytes // 20)

    def read_values(seed: int) -> list[dict[str, list[object]]]:
        request = _request(_SAMPLES - count * _BATCH)
        request.order.seed = seed
        return [batch.values for batch in read(small.channel, request).batches]

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(read_values, range(3)))

    assert [count] * 3 == [len(batches) for batches in found]
    for batches in found:
        ids = [one for values in batches for one in values["headrace.sample_id"]]
        assert ids == [one for values in batches for one in values["number"]]
        texts = [one for values in batches for one in values["text"]]
        assert texts == [f"sample {one:054d}" for one in ids]
        assert len(set(ids)) == len(ids) == count * _BATCH
