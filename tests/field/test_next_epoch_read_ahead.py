"""What a server reads where epochs start: little before a run, and ahead while an epoch ends."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

from headrace.order import Order, OrderSpec, table_of
from headrace.server import Server
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import running
from support.served import TIMEOUT_S, messages_of, stub_of

_SAMPLES, _SHUFFLED, _BATCH = 102_400, 34_000, 512
# So that a slow machine, too, has time to read ahead; an epoch takes two seconds.
_PACE_S = 0.01


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 6,400 blocks of 16 samples, in runs of two blocks."""
    url = str(tmp_path_factory.mktemp("epochs"))
    table = pa.table({"number": np.arange(_SAMPLES), "more": np.zeros(_SAMPLES)})
    write_dataset(url, table, shard_samples=[_SAMPLES // 20] * 20, block_bytes=256)
    return url


def _request(epoch: int, epochs: int) -> pb.ReadBatchesRequest:
    return pb.ReadBatchesRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=3, shuffle_samples=_SHUFFLED, run_bytes=512),
        global_batch_size=_BATCH,
        world_size=1,
        epoch_start=pb.EpochStart(epoch=epoch),
        epoch_count=epochs,
    )


def _fetched(server: Server) -> float:
    name, labels = "headrace_store_fetched_blocks_total", {"dataset": "rich"}
    return server._metrics.registry.get_sample_value(name, labels) or 0.0


def test_blocks_are_read_once_and_ahead_where_epochs_meet(url: str) -> None:
    """A cache of 1.5 times what is shuffled is enough for two epochs in which no block comes twice.

    When the first one ends, most of what the next one's first step needs is there.
    """
    with open_dataset(url) as dataset:
        blocks, raw_bytes = dataset.block_count, dataset.raw_bytes
        order = Order(
            OrderSpec(seed=3, shuffle_samples=_SHUFFLED, run_bytes=512),
            table_of(dataset.stretches()),
        )
        step = order.step(2, 0, 0)
        assert step is not None
        needed = np.unique(dataset.locate(order.sample_ids(2, 0, step.count))[0])
        last = order.sample_ids(1, _SAMPLES - _SHUFFLED // 2, _SAMPLES)
        needed = np.setdiff1d(needed, dataset.locate(last)[0])
    budget_bytes = raw_bytes * _SHUFFLED // _SAMPLES * 3 // 2

    with running(url, cache_bytes=budget_bytes) as small:
        ends, most_bytes = [], 0
        for message in messages_of(small.channel, _request(1, 2)):
            most_bytes = max(most_bytes, small.server._cache.used_bytes)
            if message.WhichOneof("event") == "epoch_end":
                ends.append(_fetched(small.server))
            time.sleep(_PACE_S)

    assert ends[0] - blocks >= 0.8 * len(needed)
    assert ends[1] <= 2 * blocks
    assert most_bytes <= budget_bytes


@pytest.mark.parametrize(
    ("epoch", "ramp", "least", "most"),
    [(0, True, 20, 64), (0, False, 450, 512), (1, True, 450, 512)],
)
def test_a_server_reads_little_before_the_first_batch_of_a_run(
    url: str, *, epoch: int, ramp: bool, least: int, most: int
) -> None:
    """Of 6,400 blocks of a table that is shuffled at once, one percent for 512 samples of epoch 0.

    Without the ramp, and in later epochs, nearly each sample is in a block of its own.
    """
    request = pb.GetBatchRequest(
        dataset="rich",
        order=pb.OrderSpec(seed=3, run_bytes=512, ramp=ramp),
        global_batch_size=_BATCH,
        world_size=1,
        epoch_start=pb.EpochStart(epoch=epoch),
    )

    with running(url, prefetch_bytes=1) as small:
        assert list(stub_of(small.channel).GetBatch(request, timeout=TIMEOUT_S))
        fetched = _fetched(small.server)

    assert least <= fetched <= most
