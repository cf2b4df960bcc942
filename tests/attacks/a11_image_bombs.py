"""Images whose heads claim more pixels, or more scans, than anybody should decode."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa

from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from headrace.v1.stages import packed
from support.bombs import claimed_png, scanned_jpeg
from support.datasets import write_dataset

_ROWS = 300
_PAUSE_S = 0.01


def _datasets(folder: Path) -> dict[str, str]:
    urls = {}
    for name, photos in (
        ("claimed", [claimed_png(8000, 8000)] * _ROWS),
        ("scanned", [scanned_jpeg(2000, 1000)]),
    ):
        urls[name] = str(folder / name)
        table = pa.table({"photo": pa.array(photos, pa.binary())})
        write_dataset(urls[name], table, shard_samples=[len(photos)], block_bytes=1 << 20)
    return urls


def _request(dataset: str, rows: int) -> pb.ReadBatchesRequest:
    decode = images_pb.DecodeImage(column="photo", height=8, width=8)
    return pb.ReadBatchesRequest(
        dataset=dataset,
        global_batch_size=rows,
        world_size=1,
        epoch_start=pb.EpochStart(),
        stages=[packed(decode)],
    )


def _strike(target: Target, begin: Begin) -> Counts:
    refused = decoded = 0
    with grpc.insecure_channel(target.address) as channel:
        stub = pb_grpc.ShardServiceStub(channel)
        until = begin()
        while time.monotonic() < until:
            for request in (_request("claimed", _ROWS), _request("scanned", 1)):
                call: Any = stub.ReadBatches(request, metadata=target.metadata)
                try:
                    decoded += any(message.HasField("batch") for message in call)
                except grpc.RpcError:
                    refused += 1
                time.sleep(_PAUSE_S)
    return {"refused": refused, "decoded": decoded}


ATTACK = Attack("image bombs", _strike, datasets=_datasets)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
