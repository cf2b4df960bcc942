"""Tests of a server over a real S3 store."""

from __future__ import annotations

import pyarrow as pa

from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import RICH_SAMPLES, running
from support.s3 import S3
from support.served import read


def test_a_dataset_in_s3_is_served_whole(s3: S3, rich: pa.Table) -> None:
    """From a cold cache smaller than the dataset every sample comes once, with its values."""
    url = s3.url("rich")
    write_dataset(url, rich, shard_samples=(600, 400), block_bytes=16_384)
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=8, shuffle_samples=250),
        global_batch_size=100,
        world_size=1,
        epoch_start=pb.EpochStart(),
        epoch_count=1,
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
