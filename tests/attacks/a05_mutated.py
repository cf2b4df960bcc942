"""Requests of every RPC, mutated byte by byte: each gets an answer, and none is INTERNAL."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import pyarrow as pa
from google.protobuf.message import Message

from attacks.harness import DATASET, After, Attack, Begin, Counts, Target, main
from headrace.order import OrderSpec, Token, encode_token
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import dealing_pb2 as dealing_pb
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import lane_pb2, ring_pb2
from headrace.v1 import meshes_pb2 as meshes_pb
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import slices_pb2 as slices_pb
from headrace.v1.stages import packed
from support.asking import asking, order_stages
from support.datasets import write_dataset
from support.images import image_bytes

_SERVICE = "/headrace.v1.ShardService/"
_TIMEOUT_S = 10.0
_AT_ONCE = 4
_OTHER, _ROWS = "mutated", 300
_PAD = "END_MODE_PAD"
_BAD = {"INTERNAL", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
_RATHER = (0, 1, 2, 127, 128, 255)


def _datasets(folder: Path) -> dict[str, str]:
    """Another dataset for mixtures, with images, rows of any length and labels for steps."""
    url = str(folder / _OTHER)
    table = pa.table(
        {
            "number": pa.array(range(_ROWS), pa.int64()),
            "photo": pa.array([image_bytes(number=1)] * _ROWS, pa.binary()),
            "tokens": pa.array([[number] * (number % 5) for number in range(_ROWS)]),
            "pairs": pa.array([[number] * 4 for number in range(_ROWS)]),
            "label": pa.array([number % 3 for number in range(_ROWS)], pa.int64()),
        }
    )
    write_dataset(url, table, shard_samples=[_ROWS], block_bytes=16_384)
    return {_OTHER: url}


def _seeds() -> list[tuple[str, bytes]]:
    """Return requests of every RPC and with every option, to be mutated."""
    batches = _batches()
    batch = batches[0]
    mixed = next(one for one in batches if not one.dataset)
    samples = pb.GetSamplesRequest(dataset=DATASET, sample_ids=[1, 2, 1999], columns=["grid"])
    of_several = asking(
        pb.GetSamplesRequest,
        mixture=_mixture(),
        dataset_indices=[0, 1],
        sample_ids=[5, 6],
        columns=["number"],
    )
    reads = _reads(batches)
    requests: dict[str, list[Any]] = {
        "ListDatasets": [pb.ListDatasetsRequest(page_size=3, page_token="x")],  # noqa: S106 - of pages
        "GetDataset": [
            pb.GetDatasetRequest(name=DATASET),
            asking(pb.GetDatasetRequest, name=DATASET, where="number < 100 and name != 'sample 1'"),
        ],
        "ExplainBatch": [pb.ExplainBatchRequest(batch=one) for one in batches],
        "FindSamples": [
            pb.FindSamplesRequest(batch=batch, sample_ids=[0, 1, 7]),
            pb.FindSamplesRequest(batch=mixed, sample_ids=[0, 1], dataset_indices=[0, 1]),
        ],
        "ReadBatches": reads,
        "AttachTransport": [_attaching(one, way) for one in reads for way in _WAYS],
        "GetBatch": batches,
        "GetSamples": [samples, of_several],
    }
    return [(name, one.SerializeToString()) for name, some in requests.items() for one in some]


_WAYS = (ring_pb2.Ring(ring_bytes=1 << 20), lane_pb2.Lane(version=1))


def _attaching(read: pb.ReadBatchesRequest, way: Message) -> pb.AttachTransportRequest:
    asked = pb.AttachTransportRequest(read=read)
    asked.transport.Pack(way)
    return asked


def _batches() -> list[pb.GetBatchRequest]:
    """Return requests of one batch, with every option of order, mixture, skips and steps."""
    crop = images_pb.RandomResizedCrop(
        height=8,
        width=8,
        least_scale=0.2,
        greatest_scale=1.0,
        least_ratio=0.75,
        greatest_ratio=1.25,
    )
    resize = images_pb.ImageTransform(random_resized_crop=crop)
    flip = images_pb.ImageTransform(random_horizontal_flip=images_pb.RandomHorizontalFlip(p=0.5))
    floats = images_pb.ImageTransform(normalize=images_pb.Normalize(mean=[0.5] * 3, std=[0.2] * 3))
    photo = images_pb.DecodeImage(column="photo", transforms=[resize, flip, floats], channels=3)
    mix = images_pb.MixUp(column="photo", labels="label", alpha=0.4, class_count=3)
    options: list[dict[str, Any]] = [
        {"dataset": DATASET},
        {"dataset": DATASET, "order": pb.OrderSpec(seed=3, lanes=2, unit=10, shuffle_samples=90)},
        {"dataset": DATASET, "order": pb.OrderSpec(shuffle=False), "where": "number >= 20"},
        {"dataset": DATASET, "skips": pb.SkipList(sample_ids=[3, 4, 5, 1998]), "end": _PAD},
        {"mixture": _mixture(), "columns": ["number"]},
        {"mixture": _mixture(batching="BATCHING_STRATIFIED"), "columns": ["number"]},
        {
            "mixture": _mixture(
                schedule=[
                    mixtures_pb.SchedulePiece(weights=[1.0, 2.0]),
                    mixtures_pb.SchedulePiece(start=20, weights=[3.0, 1.0]),
                ]
            ),
            "columns": ["number"],
        },
        {
            "dataset": DATASET,
            "columns": ["number", "name"],
            "stages": [packed(columns_pb.Cast(column="number", element_type="ELEMENT_TYPE_INT32"))],
        },
        {
            "dataset": _OTHER,
            "columns": ["tokens", "pairs", "label"],
            "stages": [
                packed(columns_pb.Stack(column="pairs", item_shape=[2, 2])),
                packed(columns_pb.Pad(column="tokens", length=6, fill=-1.0)),
                packed(images_pb.OneHot(column="label", class_count=3)),
            ],
        },
        {
            "dataset": _OTHER,
            "columns": ["photo", "label"],
            "stages": [packed(photo), packed(mix)],
        },
        {
            "dataset": _OTHER,
            "columns": ["tokens"],
            "stages": [
                packed(meshes_pb.Mesh(text="dp=2,cp=2", rank=1, job="j")),
                packed(columns_pb.Pad(column="tokens", length=6, fill=-1.0)),
                packed(
                    slices_pb.Slice(
                        columns=["tokens"],
                        part=1,
                        part_count=2,
                        layout="SLICE_LAYOUT_ZIGZAG",
                        fills=[-1.0],
                        positions="at",
                    )
                ),
            ],
        },
        {
            "dataset": _OTHER,
            "deal": dealing_pb.Deal(sizes=[3, 7], in_order=True),
        },
        {
            "dataset": _OTHER,
            "deal": dealing_pb.Deal(length_cost=1.0, speeds=[1.0, 2.0]),
            "buckets": 2,
        },
    ]
    common: Any = {"global_batch_size": 10, "world_size": 2, "epoch_start": pb.EpochStart(epoch=1)}
    return [asking(pb.GetBatchRequest, **{**common, **own}) for own in options]


def _mixture(**fields: Any) -> mixtures_pb.Mixture:
    weighted = mixtures_pb.MixtureDataset(
        name=DATASET,
        stages=order_stages(where="number < 900", skips=pb.SkipList(sample_ids=[7, 8])),
    )
    other = mixtures_pb.MixtureDataset(name=_OTHER)
    if "schedule" in fields:
        return mixtures_pb.Mixture(datasets=[weighted, other], epoch_size=400, **fields)
    weighted.repeat, other.choose = 0.5, 40
    other.choice, other.granularity = mixtures_pb.CHOICE_FIXED, 5
    return mixtures_pb.Mixture(datasets=[weighted, other], **fields)


def _reads(batches: list[pb.GetBatchRequest]) -> list[pb.ReadBatchesRequest]:
    """Return the same as requests of streams, and those that only streams have."""
    token = encode_token(
        Token("0" * 32, OrderSpec(unit=10), 0, 0, global_batch_size=10, step=0, sample_count=0)
    )
    read = pb.ReadBatchesRequest(
        dataset=DATASET,
        global_batch_size=10,
        world_size=2,
        rank=1,
        epoch_start=pb.EpochStart(epoch=1),
        epoch_count=1,
        columns=["number", "name"],
        batch_stride=3,
        batch_offset=1,
    )
    reads = [read, pb.ReadBatchesRequest(dataset=DATASET, world_size=1, resume_token=token)]
    for batch in batches:
        own: dict[str, Any] = {field.name: value for field, value in batch.ListFields()}
        reads.append(asking(pb.ReadBatchesRequest, **own, epoch_count=1))
    return reads


def _mutated(chosen: random.Random, request: bytes) -> bytes:
    """Change, insert, drop or repeat some bytes."""
    found = bytearray(request)
    for _ in range(chosen.choice((1, 1, 1, 2, 4, 8))):
        place = chosen.randrange(len(found) + 1)
        match chosen.randrange(5):
            case 0 if place < len(found):
                found[place] ^= 1 << chosen.randrange(8)
            case 1 if place < len(found):
                found[place] = chosen.choice(_RATHER)
            case 2:
                found[place:place] = chosen.randbytes(chosen.randrange(1, 5))
            case 3:
                del found[place : place + chosen.randrange(1, 4)]
            case _:
                found[place:place] = found[place : place + chosen.randrange(1, 12)]
    return bytes(found)


def _strike(target: Target, begin: Begin) -> Counts:
    chosen = random.Random(time.time_ns())
    ends: Counter[str] = Counter()
    with grpc.insecure_channel(target.address) as channel:
        ask = channel.unary_stream
        asks: Any = {name: ask(_SERVICE + name, None, None) for name, _ in _seeds()}
        grpc.channel_ready_future(channel).result(timeout=30)
        seeds = _seeds()
        until = begin()
        while time.monotonic() < until:
            calls = []
            for _ in range(_AT_ONCE):
                name, request = chosen.choice(seeds)
                sent = _mutated(chosen, request)
                call = asks[name](sent, timeout=_TIMEOUT_S, metadata=target.metadata)
                calls.append((name, sent, call))
            for name, sent, call in calls:
                end = _end(call)
                ends[f"{end} of {name} {sent.hex()}" if end in _BAD else end] += 1
    return ends


def _end(call: Any) -> str:
    """Read a little, and return how the call ended."""
    try:
        for number, _ in enumerate(call):
            if number == 3:
                call.cancel()
                return "OK"
    except grpc.RpcError as error:
        return "PENDING" if _is_pending(error) else str(error.code().name)
    return "OK"


def _is_pending(error: grpc.RpcError) -> bool:
    """Tell whether the server says that it is still at the filter, and when to ask again."""
    found = cast("Sequence[tuple[str, bytes]]", error.trailing_metadata() or ())
    return any(
        key == "grpc-status-details-bin" and b"FILTER_PENDING" in value for key, value in found
    )


def _check(after: After) -> list[str]:
    wrong = [end for end in after.counts if end.partition(" ")[0] in _BAD]
    lines = after.log.count("malformed requests")
    if lines > 1 + after.seconds / 5:
        wrong.append(f"{lines} lines of the log for malformed requests")
    return wrong


# Long enough for 100,000 of them.
ATTACK = Attack("mutated requests", _strike, datasets=_datasets, check=_check, long_seconds=300.0)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
