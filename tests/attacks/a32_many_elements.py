"""Requests that repeat what may be repeated as often as fits, up to what is allowed and beyond."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2

from attacks.harness import DATASET, Attack, Begin, Counts, Target, main
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from headrace.v1.stages import packed
from support.asking import asking
from support.datasets import small_table, write_dataset

_OTHER = "elements"
_ROWS = 2000
_BATCHES = 10


def _datasets(folder: Path) -> dict[str, str]:
    """Another dataset, for mixtures with schedules."""
    url = str(folder / _OTHER)
    write_dataset(url, small_table(_ROWS), shard_samples=[_ROWS], block_bytes=65_536)
    return {_OTHER: url}


def _requests() -> Iterator[pb.ReadBatchesRequest]:
    """Yield requests without end, none of which is answered from memory."""
    none = any_pb2.Any()
    transforms = images_pb.DecodeImage(
        column="name", transforms=[images_pb.ImageTransform()] * 200_000
    )
    for seed in itertools.count(1):
        order = pb.OrderSpec(seed=seed)
        yield pb.ReadBatchesRequest(dataset=DATASET, stages=[none] * 50_000)
        yield pb.ReadBatchesRequest(dataset=DATASET, stages=[packed(transforms)] * 2)
        for count in (30_000, 1024):
            pieces = [
                mixtures_pb.SchedulePiece(start=16 * at, weights=[1, 2]) for at in range(count)
            ]
            mixed = [mixtures_pb.MixtureDataset(name=name) for name in (DATASET, _OTHER)]
            mixture = mixtures_pb.Mixture(datasets=mixed, epoch_size=_ROWS, schedule=pieces)
            yield asking(pb.ReadBatchesRequest, mixture=mixture, order=order, columns=["number"])
        for where in (
            " or ".join(f"number = {seed + at}" for at in range(400)),
            " or ".join(f"number = {seed + at}" for at in range(64)),
            " or ".join(f"number < {seed + at}e999" for at in range(64)),
            f"number in ({','.join(str(seed + 7 * at) for at in range(1000))})",
            "not " * 1900 + f"number < {seed}",
        ):
            yield asking(pb.ReadBatchesRequest, dataset=DATASET, order=order, where=where)
        skips = pb.SkipList(sample_ids=[at for at in range(_ROWS) if at % 200 != seed % 200])
        yield asking(
            pb.ReadBatchesRequest, dataset=DATASET, order=order, skips=skips, global_batch_size=1
        )


def _strike(target: Target, begin: Begin) -> Counts:
    ends: Counter[str] = Counter()
    requests = _requests()
    with grpc.insecure_channel(target.address) as channel:
        stub = pb_grpc.ShardServiceStub(channel)
        until = begin()
        while time.monotonic() < until:
            request = next(requests)
            request.global_batch_size = request.global_batch_size or 64
            request.world_size = 1
            request.epoch_start.epoch = 0
            call: Any = stub.ReadBatches(request, metadata=target.metadata)
            try:
                ends["messages"] += sum(1 for _ in itertools.islice(call, _BATCHES))
            except grpc.RpcError as error:
                ends[error.code().name] += 1
            call.cancel()
    return ends


ATTACK = Attack("many elements", _strike, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
