"""Tests of what an epoch reads through a cache of just what each lane shuffles together.

Scaled down: blocks are of 2 KiB, a run has two of them, and some hundred are shuffled together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
import pytest

from headrace.order import Order, OrderSpec, table_of
from headrace.server import Server
from headrace.storage import open_dataset
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from server.conftest import StartServer
from support.datasets import write_dataset
from support.needs import needed_cache
from support.running import server_of
from support.served import epoch_request, messages_of

_BLOCK_BYTES = 2048
_RUN_BLOCKS = 2
# An epoch has this many times the samples that are shuffled together.
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

    def order(self) -> pb.OrderSpec:
        """Return how it shuffles."""
        return pb.OrderSpec(
            seed=3,
            shuffle_bytes=self.together * _BLOCK_BYTES,
            run_bytes=_RUN_BLOCKS * _BLOCK_BYTES,
            lanes=self.lanes,
            unit=self.together * self.block_samples // 96,
        )


def _write(url: str, block_samples: int, *, block_count: int) -> None:
    """Write blocks that take as many bytes in memory as in a shard."""
    count, width = block_count * block_samples, _BLOCK_BYTES // block_samples // 8
    flat = pa.array(np.arange(count * width))
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, width)})
    write_dataset(url, table, shard_samples=[count // _SHARDS] * _SHARDS, block_bytes=_BLOCK_BYTES)


def _count(server: Server, name: str, *, dataset: str = "rich") -> float:
    found = server._metrics.registry.get_sample_value(
        f"headrace_store_{name}", {"dataset": dataset}
    )
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
    """At most 1.05 of the blocks are fetched, in a read for a run, or for half of one at first."""
    _write(str(tmp_path), case.block_samples, block_count=_TIMES * case.together * case.lanes)
    order = case.order()
    request = pb.ReadBatchesRequest(
        dataset="rich",
        order=order,
        global_batch_size=order.unit,
        world_size=1,
        epoch_start=pb.EpochStart(position=case.position),
        epoch_count=1,
        end=pb.END_MODE_UNEVEN,
    )
    with open_dataset(str(tmp_path)) as dataset:
        count = dataset.sample_count
        spec = OrderSpec(
            seed=order.seed,
            shuffle_bytes=order.shuffle_bytes,
            run_bytes=order.run_bytes,
            lanes=order.lanes,
            unit=order.unit,
        )
        sample_ids = Order(spec, table_of(dataset.stretches())).sample_ids(0, case.position, count)
        blocks = np.unique(dataset.locate(sample_ids)[0])
        runs = np.unique(blocks // _RUN_BLOCKS).size

    served = start(
        str(tmp_path),
        cache_bytes=needed_cache(str(tmp_path), shuffle_bytes=order.shuffle_bytes * case.lanes)
        + _MORE * _BLOCK_BYTES,
        fetch_threads=2,
    )
    read = sum(map(_sample_count, messages_of(served.channel, request)))

    assert count - case.position == read
    assert _count(served.server, "fetched_blocks_total") <= 1.05 * blocks.size
    # An epoch opens with what is shuffled together, in halves of runs.
    halves = 0 if case.position else case.together * case.lanes / _RUN_BLOCKS
    assert _count(served.server, "fetch_seconds_count") <= 1.1 * runs + halves


@pytest.mark.parametrize(
    "batching",
    [
        pytest.param(mixtures_pb.BATCHING_RANDOM, id="random"),
        pytest.param(mixtures_pb.BATCHING_PER_DATASET, id="a dataset a batch"),
    ],
)
def test_a_mixture_reads_each_run_once(batching: mixtures_pb.Batching, tmp_path: Path) -> None:
    """Three datasets share the memory; each is read once, however draws are batched."""
    case, names = _Case(8), ("a", "b", "c")
    block_count = _TIMES * case.together // len(names)
    for name in names:
        _write(str(tmp_path / name), case.block_samples, block_count=block_count)
    order = case.order()
    request = epoch_request(
        mixture=mixtures_pb.Mixture(
            datasets=[mixtures_pb.MixtureDataset(name=name) for name in names], batching=batching
        ),
        order=order,
        global_batch_size=order.unit,
        end=pb.END_MODE_UNEVEN,
    )
    with (
        server_of(
            {name: str(tmp_path / name) for name in names},
            cache_bytes=(case.together + len(names) * _MORE) * _BLOCK_BYTES,
            fetch_threads=2,
        ) as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        read = sum(map(_sample_count, messages_of(channel, request)))
        fetched = sum(_count(server, "fetched_blocks_total", dataset=name) for name in names)

    assert len(names) * block_count * case.block_samples == read
    assert fetched <= 1.05 * len(names) * block_count


def _sample_count(message: pb.ReadBatchesResponse) -> int:
    return message.batch.sample_count if message.WhichOneof("event") == "batch" else 0
