"""Tests of several replicas over one store: with lanes they read it once together."""

from __future__ import annotations

import re
from contextlib import ExitStack

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import server_of
from support.s3 import S3
from support.served import Transcript, epoch_request, read
from support.store_proxy import StoreProxy, store_proxied
from support.threads import at_once

_REPLICAS = 8
_SAMPLES = 8192
_ROW_BYTES = 2048


def _stored_bytes(proxy: StoreProxy) -> int:
    """Return the bytes of all parts of shards that were asked for."""
    total = 0
    for part in proxy.seen:
        found = re.search(r"\.arrow bytes=(\d+)-(\d+)$", part)
        if found:
            total += int(found[2]) - int(found[1]) + 1
    return total


def _request(rank: int) -> pb.ReadBatchesRequest:
    return epoch_request(
        dataset="lanes",
        order=pb.OrderSpec(seed=4, shuffle_samples=_SAMPLES // 32, lanes=_REPLICAS),
        global_batch_size=_REPLICAS * 32,
        rank=rank,
        world_size=_REPLICAS,
        with_ids=True,
        columns=["number"],
    )


def test_replicas_read_the_store_once_together(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks at eight replicas with eight lanes fetch at most 1.1 times the data an epoch.

    Each replica caches a quarter of the data, so each alone would read nearly all of it.
    """
    numbers = np.arange(_SAMPLES)
    rows = np.random.default_rng(0).integers(0, 256, _SAMPLES * _ROW_BYTES, np.uint8)
    table = pa.table(
        {
            "number": pa.array(numbers),
            "row": pa.FixedSizeListArray.from_arrays(pa.array(rows), _ROW_BYTES),
        }
    )
    url = s3.url("lanes")
    manifest = write_dataset(
        url, table, shard_samples=[_SAMPLES // 64] * 64, block_bytes=16 * _ROW_BYTES
    )
    seen: list[Transcript] = []
    with store_proxied(s3.weed.endpoint) as proxy, ExitStack() as stack:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", proxy.endpoint)
        channels = [
            stack.enter_context(
                grpc.insecure_channel(
                    stack.enter_context(
                        server_of(
                            {"lanes": url}, cache_bytes=_SAMPLES * _ROW_BYTES // 4, fetch_threads=2
                        )
                    ).address
                )
            )
            for _ in range(_REPLICAS)
        ]
        ranks = range(len(channels))
        at_once(lambda rank: seen.append(read(channels[rank], _request(rank))), ranks)
        fetched = _stored_bytes(proxy)

    stored = int(manifest.stored_bytes.sum())
    assert numbers.tolist() == sorted(i for one in seen for ids in one.ids for i in ids)
    assert 0.9 * stored < fetched <= 1.1 * stored, f"{fetched} bytes fetched of {stored} stored"
