"""Streams of large batches whose client takes a first message and never reads again."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa

from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.served import stub_of

_STREAMS = 12
# Never-readers want more of it than there is.
_OPTIONS = ("--payload-bytes=64MiB", "--max-streams=32")
_ROWS, _ROW_BYTES = 1024, 8192


def _datasets(folder: Path) -> dict[str, str]:
    values = pa.array(np.zeros(_ROWS * _ROW_BYTES, np.uint8))
    table = pa.table({"wide": pa.FixedSizeListArray.from_arrays(values, _ROW_BYTES)})
    url = str(folder / "wide")
    write_dataset(url, table, shard_samples=[_ROWS], block_bytes=1 << 18)
    return {"wide": url}


def _strike(target: Target, begin: Begin) -> Counts:
    request = pb.ReadBatchesRequest(
        dataset="wide", global_batch_size=256, world_size=1, epoch_start=pb.EpochStart()
    )
    with ExitStack() as stack:
        for _ in range(_STREAMS):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(target.address, options=options))
            call: Any = stub_of(channel).ReadBatches(request, metadata=target.metadata)
            stack.callback(call.cancel)
            next(call)
        until = begin()
        time.sleep(max(0.0, until - time.monotonic()))
    return {"streams": _STREAMS}


ATTACK = Attack("never-readers", _strike, options=_OPTIONS, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
