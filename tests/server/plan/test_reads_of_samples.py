"""Tests of what an epoch reads through a cache of just ``shuffle_bytes`` for each lane.

Scaled down: blocks are of 2 KiB, a run has two of them, and some hundred are shuffled together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.order import Order, OrderSpec, table_of
from headrace.server import Server
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.served import messages_of

_BLOCK_BYTES = 2048
_RUN_BLOCKS = 2
# An epoch has so many times what is shuffled together.
_TIMES = 4
# Runs are cut by cohorts, and reads are under way; neither is less for being scaled down.
_MORE = 16
_SHARDS = 4


@dataclass(frozen=True, slots=True)
class _Case:
    """A job: how many samples a block has, how many lanes there are, and where it begins.

    And how many blocks a lane shuffles together: more where every batch needs each of them.
    """

    block_samples: int
    lanes: int = 1
    position: int = 0
    together: int = 192


def _write(url: str, block_samples: int, *, block_count: int) -> None:
    """Write blocks that take as many bytes in memory as in a shard."""
    count, width = block_count * block_samples, _BLOCK_BYTES // block_samples // 8
    flat = pa.array(np.arange(count * width))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)})
    write_dataset(url, table, shard_samples=[count // _SHARDS] * _SHARDS, block_bytes=_BLOCK_BYTES)


def _count(server: Server, name: str) -> float:
    found = server._metrics.registry.get_sample_value(f"headrace_store_{name}", {"dataset": "rich"})
    return found or 0.0


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(_Case(1), id="a sample a block"),
        pytest.param(_Case(16), id="some samples"),
        pytest.param(_Case(128, together=512), id="small samples"),
        pytest.param(_Case(4, lanes=2), id="two lanes"),
        pytest.param(_Case(16, position=_TIMES * 192 * 8), id="from the middle on"),
    ],
)
def test_an_epoch_reads_each_run_once(case: _Case, tmp_path: Path, start: StartServer) -> None:
    """At most 1.05 of the blocks that the samples lie in are fetched, in a read for each run."""
    _write(str(tmp_path), case.block_samples, block_count=_TIMES * case.together * case.lanes)
    spec = OrderSpec(
        seed=3,
        shuffle_bytes=case.together * _BLOCK_BYTES,
        run_bytes=_RUN_BLOCKS * _BLOCK_BYTES,
        lanes=case.lanes,
        unit=case.together * case.block_samples // 96,
    )
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(
            seed=spec.seed,
            shuffle_bytes=spec.shuffle_bytes,
            run_bytes=spec.run_bytes,
            lanes=spec.lanes,
            unit=spec.unit,
        ),
        global_batch_size=spec.unit,
        world_size=1,
        epoch_start=pb.EpochStart(position=case.position),
        epoch_count=1,
        end=pb.END_MODE_UNEVEN,
    )
    with open_dataset(str(tmp_path)) as dataset:
        count = dataset.sample_count
        order = Order(spec, table_of(dataset.stretches()))
        wanted = np.unique(dataset.locate(order.sample_ids(0, case.position, count))[0]).size

    served = start(
        str(tmp_path),
        cache_bytes=(case.together * case.lanes + _MORE) * _BLOCK_BYTES,
        fetch_threads=2,
    )
    read = sum(map(_sample_count, messages_of(served.channel, request)))

    assert count - case.position == read
    assert _count(served.server, "fetched_blocks_total") <= 1.05 * wanted
    assert _count(served.server, "fetch_seconds_count") <= 1.1 * wanted / _RUN_BLOCKS


def _sample_count(message: pb.ReadBatchesResponse) -> int:
    return message.batch.sample_count if message.WhichOneof("event") == "batch" else 0
