"""Images that are large and legal, decoded for several streams at once."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import grpc
import numpy as np
import pyarrow as pa
from PIL import Image

from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from headrace.v1.stages import packed
from support.datasets import write_dataset

_SIDE = 4000
_ROWS = 4
_STREAMS = 8


def _datasets(folder: Path) -> dict[str, str]:
    ramp = np.add.outer(np.arange(_SIDE), np.arange(_SIDE)).astype(np.uint8)
    url, file = str(folder / "large"), io.BytesIO()
    Image.fromarray(np.stack([ramp, ramp.T, 255 - ramp], axis=2)).save(
        file, "PNG", compress_level=1
    )
    table = pa.table({"photo": pa.array([file.getvalue()] * _ROWS, pa.binary())})
    write_dataset(url, table, shard_samples=[_ROWS], block_bytes=1 << 20)
    return {"large": url}


def _strike(target: Target, begin: Begin) -> Counts:
    decoded = [0] * _STREAMS
    decode = images_pb.DecodeImage(column="photo", height=8, width=8)
    request = pb.ReadBatchesRequest(
        dataset="large",
        global_batch_size=1,
        world_size=1,
        epoch_start=pb.EpochStart(),
        stages=[packed(decode)],
    )

    def read(number: int, stub: pb_grpc.ShardServiceStub, until: float) -> None:
        with suppress(grpc.RpcError):
            while time.monotonic() < until:
                for message in stub.ReadBatches(request, metadata=target.metadata):
                    decoded[number] += message.HasField("batch")
                    if time.monotonic() >= until:
                        break

    with grpc.insecure_channel(target.address) as channel:
        stub = pb_grpc.ShardServiceStub(channel)
        until = begin()
        readers = [
            threading.Thread(target=read, args=(number, stub, until), daemon=True)
            for number in range(_STREAMS)
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(max(0.0, until - time.monotonic()) + 1.0)
    return {"images": sum(decoded)}


ATTACK = Attack("heavy images", _strike, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
