"""Lists of samples to leave out, of every shape that is hard to go along."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking
from support.datasets import small_table, write_dataset

_SAMPLES = 20_001
_BATCHES = 20


def _datasets(folder: Path) -> dict[str, str]:
    url = str(folder / "many")
    table = small_table(_SAMPLES)
    write_dataset(url, table, shard_samples=[10_000, 10_001], block_bytes=65_536)
    return {"many": url}


def _requests() -> Iterator[pb.ReadBatchesRequest]:
    lists = (
        range(_SAMPLES),
        range(_SAMPLES - 1),
        range(1, _SAMPLES),
        range(5000, 13_000),
        range(0, _SAMPLES, 2),
        [i for i in range(_SAMPLES) if i % 1000],
    )
    orders = (
        pb.OrderSpec(shuffle=False),
        pb.OrderSpec(shuffle_bytes=0),
        pb.OrderSpec(shuffle_samples=1),
        pb.OrderSpec(shuffle_samples=100),
        pb.OrderSpec(lanes=8, unit=64),
    )
    for seed in itertools.count():
        for ids, order in itertools.product(lists, orders):
            message = asking(
                pb.ReadBatchesRequest,
                dataset="many",
                order=order,
                global_batch_size=64,
                world_size=1,
                epoch_start=pb.EpochStart(),
                skips=pb.SkipList(sample_ids=ids),
            )
            message.order.seed = seed
            yield message


def _strike(target: Target, begin: Begin) -> Counts:
    batches = refused = 0
    requests = _requests()
    with grpc.insecure_channel(target.address) as channel:
        stub = pb_grpc.ShardServiceStub(channel)
        until = begin()
        while time.monotonic() < until:
            call: Any = stub.ReadBatches(next(requests), metadata=target.metadata)
            try:
                batches += sum(1 for _ in itertools.islice(call, _BATCHES))
            except grpc.RpcError:
                refused += 1
            call.cancel()
    return {"messages": batches, "refused": refused}


# Two that read all the time have half of a server each. An attacker that reads the honest caller's
# own dataset, without skips, left it 0.41 to 0.55 in rounds of 2 s, and this one 0.28 to 0.50.
ATTACK = Attack("skips", _strike, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
