"""Questions that take long to answer, more of them at a time than there are threads."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.cli.stored.row_counter import row_counter
from headrace.storage import RowOptions, index_packing
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking
from support.datasets import write_dataset

_SAMPLES = 50_000
_AT_ONCE = 16
_TIMEOUT_S = 20.0


def _datasets(folder: Path) -> dict[str, str]:
    url = str(folder / "lengths")
    lengths = np.arange(_SAMPLES) % 60
    ends = np.concatenate([[0], np.cumsum(lengths)])
    values = pa.array(np.zeros(ends[-1], np.int32))
    table = pa.table({"tokens": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)})
    write_dataset(url, table, shard_samples=[_SAMPLES], block_bytes=65_536)
    index_packing(url, RowOptions(256), count_rows=row_counter())
    return {"lengths": url}


def _questions() -> list[pb.FindSamplesRequest]:
    """The places of many samples, each of whose batches is dealt as a whole, or is one of many."""
    wholes = (
        asking(pb.GetBatchRequest, global_batch_size=1 << 16, world_size=8, deal=dealing_pb.Deal()),
        asking(
            pb.GetBatchRequest,
            global_batch_size=1 << 12,
            world_size=8,
            deal=dealing_pb.Deal(accumulate=16),
        ),
        pb.GetBatchRequest(
            global_batch_size=64,
            world_size=1,
            order=pb.OrderSpec(lanes=64, unit=64, shuffle_samples=1),
        ),
    )
    for batch in wholes:
        batch.dataset, batch.end = "lengths", pb.END_MODE_UNEVEN
        batch.epoch_start.SetInParent()
    return [
        pb.FindSamplesRequest(batch=batch, sample_ids=range(0, count * 12, 12))
        for batch in wholes
        for count in (4096, 64)
    ]


def _strike(target: Target, begin: Begin) -> Counts:
    seen: Counter[str] = Counter()
    questions = itertools.cycle(_questions())
    with grpc.insecure_channel(target.address) as channel:
        ask = pb_grpc.ShardServiceStub(channel).FindSamples.future

        def asked() -> Any:
            return ask(next(questions), timeout=_TIMEOUT_S, metadata=target.metadata)

        open_ones = [asked() for _ in range(_AT_ONCE)]
        until = begin()
        while time.monotonic() < until:
            time.sleep(0.01)
            for number, one in enumerate(open_ones):
                if one.done():
                    seen[str(one.code().name).lower()] += 1
                    open_ones[number] = asked()
        for one in open_ones:
            one.cancel()
    return seen


ATTACK = Attack("long questions", _strike, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
