"""Fifteen hundred streams at once, again and again: each is served or told to wait.

One that got neither by the attack's end is given up, so that a slow machine is not a late attacker.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

import grpc

from attacks.harness import Attack, Begin, Counts, Target, main
from attacks.honest import told_to_wait_s
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc

_CALLS = 1500
_REFUSED = "refused in order"


def _strike(target: Target, begin: Begin) -> Counts:
    ends: Counter[str] = Counter()
    with grpc.insecure_channel(target.address) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
        read = pb_grpc.ShardServiceStub(channel).ReadBatches
        request = pb.ReadBatchesRequest(
            dataset="small",
            global_batch_size=100,
            world_size=1,
            epoch_start=pb.EpochStart(),
            epoch_count=1,
        )
        until = begin()
        while time.monotonic() < until:
            _burst(read, request, target, ends, until)
    return ends


def _burst(
    read: Any, request: pb.ReadBatchesRequest, target: Target, ends: Counter[str], until: float
) -> None:
    """Call at once, and read what comes; what was not begun when the attack ends is given up."""
    over = threading.Semaphore(0)
    calls = [read(request, metadata=target.metadata, timeout=60) for _ in range(_CALLS)]
    for call in calls:
        if not call.add_callback(over.release):
            over.release()
    for call in calls:
        if time.monotonic() > until:
            call.cancel()
            ends["given up"] += 1
            continue
        try:
            for _ in call:
                pass
            ends["served"] += 1
        except grpc.RpcError as error:
            told = told_to_wait_s(error) is not None
            ends[_REFUSED if told else f"{error.code()}: {error.details()}"] += 1
    for _ in calls:
        over.acquire()


ATTACK = Attack("a burst of streams", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
