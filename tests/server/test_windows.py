"""Tests of a dataset ten times the cache: each block is fetched at most once a window."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from headrace.server import Server
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.served import read

_SAMPLES = 20_480
_WINDOW = _SAMPLES // 20
_BATCH = 128


@pytest.fixture(scope="module")
def large_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of some hundreds of blocks in 30 shards."""
    url = str(tmp_path_factory.mktemp("large"))
    ids = np.arange(_SAMPLES)
    table = pa.table({"number": ids, "text": [f"sample {i:054d}" for i in ids]})
    write_dataset(url, table, shard_samples=[_SAMPLES // 32] * 32, block_bytes=280)
    return url


def _fetches(server: Server) -> float:
    name, labels = "headrace_store_fetched_blocks_total", {"dataset": "rich"}
    return server._metrics.registry.get_sample_value(name, labels) or 0.0


def _visits(blocks: NDArray[np.int64]) -> int:
    """Count readings of a block that come a window or more after the one before."""
    places = np.argsort(blocks, kind="stable")
    is_same = np.diff(blocks[places]) == 0
    return 1 + int(np.count_nonzero(~is_same | (np.diff(places) >= _WINDOW)))


def test_each_block_is_fetched_once_a_window(large_url: str, start: StartServer) -> None:
    """Through a tenth of its size a dataset is read with one fetch of a block for each window."""
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=3, window=_WINDOW),
        global_batch_size=_BATCH,
        world_size=1,
        epoch_start=pb.EpochStart(),
        epoch_count=1,
        with_ids=True,
    )
    large = start(large_url)
    sample_ids = np.concatenate(read(large.channel, request).ids)
    dataset = large.server._catalog.get("rich").dataset
    budget_bytes = large.server._cache.used_bytes // 10

    small = start(large_url, cache_bytes=budget_bytes)
    again = np.concatenate(read(small.channel, request).ids)

    assert sample_ids.tolist() == again.tolist()
    assert small.server._cache.used_bytes <= budget_bytes
    assert dataset.block_count == _fetches(large.server)
    assert _fetches(small.server) <= _visits(dataset.locate(sample_ids)[0])
