"""Tests of a server over a real S3 store."""

from __future__ import annotations

import gc
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.server.cache.block_cache import BlockCache
from headrace.server.datasets.open_served import open_served
from headrace.server.settings.server_config import ServerConfig
from headrace.server.telemetry.metrics import Metrics
from headrace.server.workers.shared_sources import SharedSources
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.no_threads import no_threads
from support.running import RICH_SAMPLES, running
from support.s3 import S3
from support.served import epoch_request, read


def test_a_dataset_in_s3_is_served_whole(s3: S3, rich: pa.Table) -> None:
    """From a cold cache smaller than the dataset every sample comes once, with its values."""
    url = s3.url("rich")
    write_dataset(url, rich, shard_samples=(600, 400), block_bytes=16_384)
    request = epoch_request(
        dataset="rich",
        order=pb.OrderSpec(seed=8, shuffle_samples=250),
        global_batch_size=100,
        with_ids=True,
        columns=["number", "text"],
    )

    with running(url, cache_bytes=200_000) as started:
        seen = read(started.channel, request)

    texts = rich.column("text").to_pylist()
    ids = [number for batch in seen.batches for number in batch.ids]
    assert list(range(RICH_SAMPLES)) == sorted(ids)
    for batch in seen.batches:
        assert batch.ids == batch.values["number"]
        assert [texts[number] for number in batch.ids] == batch.values["text"]


def _socket_count() -> int:
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += str(each.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


def test_a_dataset_that_cannot_be_served_leaves_no_connection(s3: S3, rich: pa.Table) -> None:
    """It was opened in vain: there is no thread to fetch its blocks, or no memory for its places.

    The errors are kept, and with them everything that Python would otherwise close.
    """
    url = s3.url("rich")
    write_dataset(url, rich, shard_samples=(600, 400), block_bytes=16_384)
    config = ServerConfig(datasets={"rich": url}).dataset_configs["rich"]
    cache = BlockCache(1 << 20, fetch_threads=1, observer=Metrics())
    sources = SharedSources(cache, capacity=1 << 52, observers=[])
    gc.collect()
    before = _socket_count()

    with no_threads(), pytest.raises(RuntimeError) as first:
        open_served("rich", config, cache=cache, max_batch_bytes=1 << 20)
    with pytest.raises(OSError, match=r"large|argument|memory") as second:
        sources.take("rich", config, "")
    gc.collect()
    after = _socket_count()

    cache.close()
    assert before == after
    assert first.tb is not None
    assert second.tb is not None
