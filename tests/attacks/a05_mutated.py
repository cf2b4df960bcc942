"""Requests of every RPC, mutated byte by byte: each gets an answer, and none is INTERNAL."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from typing import Any

import grpc

from attacks.harness import DATASET, After, Attack, Begin, Counts, Target, main
from headrace.order import OrderSpec, Token, encode_token
from headrace.v1 import shard_service_pb2 as pb

_SERVICE = "/headrace.v1.ShardService/"
_TIMEOUT_S = 10.0
_AT_ONCE = 4
_BAD = {"INTERNAL", "UNKNOWN", "CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
_RATHER = (0, 1, 2, 127, 128, 255)


def _seeds() -> list[tuple[str, bytes]]:
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
    )
    resumed = pb.ReadBatchesRequest(dataset=DATASET, world_size=1, resume_token=token)
    batch = pb.GetBatchRequest(
        dataset=DATASET, global_batch_size=10, world_size=1, epoch_start=pb.EpochStart()
    )
    samples = pb.GetSamplesRequest(dataset=DATASET, sample_ids=[1, 2, 1999], columns=["grid"])
    requests: dict[str, list[Any]] = {
        "ListDatasets": [pb.ListDatasetsRequest(page_size=3, page_token="x")],  # noqa: S106 - of pages
        "GetDataset": [pb.GetDatasetRequest(name=DATASET)],
        "ExplainBatch": [pb.ExplainBatchRequest(batch=batch)],
        "FindSamples": [pb.FindSamplesRequest(batch=batch, sample_ids=[0, 1, 7])],
        "ReadBatches": [read, resumed],
        "AttachRing": [pb.AttachRingRequest(read=read, ring_bytes=1 << 20)],
        "GetBatch": [batch],
        "GetSamples": [samples],
    }
    return [(name, one.SerializeToString()) for name, some in requests.items() for one in some]


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
        return str(error.code().name)
    return "OK"


def _check(after: After) -> list[str]:
    wrong = [end for end in after.counts if end.partition(" ")[0] in _BAD]
    lines = after.log.count("malformed requests")
    if lines > 1 + after.seconds / 5:
        wrong.append(f"{lines} lines of the log for malformed requests")
    return wrong


# Long enough for 100,000 of them.
ATTACK = Attack("mutated requests", _strike, check=_check, long_seconds=150.0)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
