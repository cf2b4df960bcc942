"""Tests of a dataset ten times the cache: each block is fetched at most once a window.

That holds where the cache has room for the blocks of a window; a run of samples is 1/256 of one, so
blocks are made no longer than that here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.server import Server
from headrace.storage import OpenDataset
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.running import running
from support.s3 import S3
from support.served import read
from support.store_proxy import StoreProxy, store_proxied

_SAMPLES = 20_480
_WINDOW = _SAMPLES // 20
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
        order=pb.OrderSpec(seed=3, window=_WINDOW),
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


def _visits(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the readings of a block that come a window or more after the one before."""
    places = np.argsort(blocks, kind="stable")
    is_same = np.diff(blocks[places]) == 0
    is_visit = np.concatenate([[True], ~is_same | (np.diff(places) >= _WINDOW)])
    visited: NDArray[np.int64] = blocks[places[is_visit]]
    return visited


def _fetched_bytes(proxy: StoreProxy) -> int:
    """Return the bytes of shards that were asked for."""
    ranges = [re.search(r"/part-.* bytes=(\d+)-(\d+)$", part) for part in proxy.seen]
    return sum(int(one[2]) - int(one[1]) + 1 for one in ranges if one)


def test_each_block_is_fetched_once_a_window(
    large_url: str, whole: _Whole, start: StartServer
) -> None:
    """Through a tenth of its size a dataset is read with one fetch of a block for each window."""
    budget_bytes = whole.used_bytes // 10

    small = start(large_url, cache_bytes=budget_bytes)
    again = np.concatenate(read(small.channel, _request()).ids)

    assert whole.sample_ids.tolist() == again.tolist()
    assert small.server._cache.used_bytes <= budget_bytes
    assert whole.block_count == whole.fetches
    visited = _visits(_dataset(small.server).locate(again)[0])
    assert _fetches(small.server) <= visited.size


def test_bytes_of_a_store_are_those_of_the_windows(
    s3: S3, whole: _Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From S3 too no byte of a block is read twice in a window, as counted before the store.

    The last three windows of an epoch, through a cache of a tenth of the dataset.
    """
    url, position = s3.url("large"), _SAMPLES - 3 * _WINDOW
    _write(url)
    with store_proxied(s3.weed.endpoint) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with running(url, cache_bytes=whole.used_bytes // 10) as small:
            sample_ids = np.concatenate(read(small.channel, _request(position)).ids)
            dataset = _dataset(small.server)
            visited = _visits(dataset.locate(sample_ids)[0])
            allowed = int(dataset.block_stored_bytes(visited).sum())

    assert whole.sample_ids[position:].tolist() == sample_ids.tolist()
    assert 0 < _fetched_bytes(proxy) <= allowed
