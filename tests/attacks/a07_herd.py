"""Five hundred clients at once, each with a connection and a stream of its own, over and over."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from typing import Any

import grpc

from attacks.harness import DATASET, Attack, Begin, Counts, Target, main
from attacks.honest import told_to_wait_s
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc

_CLIENTS = 500
_REFUSED = "refused in order"


def _strike(target: Target, begin: Begin) -> Counts:
    ends: Counter[str] = Counter()
    until = begin()
    while time.monotonic() < until:
        herd = [threading.Thread(target=_one, args=(target, ends)) for _ in range(_CLIENTS)]
        for client in herd:
            client.start()
        for client in herd:
            client.join()
    return ends


def _one(target: Target, ends: Counter[str]) -> None:
    request = pb.ReadBatchesRequest(
        dataset=DATASET,
        global_batch_size=500,
        world_size=1,
        epoch_start=pb.EpochStart(),
        epoch_count=1,
    )
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target.address, options=options) as channel:
        read: Any = pb_grpc.ShardServiceStub(channel).ReadBatches
        try:
            for _ in read(request, metadata=target.metadata, timeout=60, wait_for_ready=True):
                pass
            ends["served"] += 1
        except grpc.RpcError as error:
            told = told_to_wait_s(error) is not None
            ends[_REFUSED if told else f"{error.code()}: {error.details()}"] += 1


ATTACK = Attack("a herd of clients", _strike, needs_proxy=True)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
