"""Mixtures of as many datasets as a request may name, refused after a look at each."""

from __future__ import annotations

import sys
import threading
import time

import grpc

from attacks.harness import DATASET, Attack, Begin, Counts, Target, main
from headrace.server.order_stages.mixtures.mixture_request import MAX_DATASETS
from headrace.v1 import mixtures_pb2 as mixtures_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.asking import asking

_CLIENTS = 8


def _strike(target: Target, begin: Begin) -> Counts:
    refused = [0] * _CLIENTS
    names = [DATASET] * MAX_DATASETS
    request = asking(
        pb.ReadBatchesRequest,
        mixture=mixtures_pb.Mixture(
            datasets=[mixtures_pb.MixtureDataset(name=name) for name in names]
        ),
        global_batch_size=64,
        world_size=1,
        epoch_start=pb.EpochStart(),
    )

    def ask(number: int, stub: pb_grpc.ShardServiceStub, until: float) -> None:
        while time.monotonic() < until:
            try:
                list(stub.ReadBatches(request, metadata=target.metadata))
            except grpc.RpcError:
                refused[number] += 1

    with grpc.insecure_channel(target.address) as channel:
        stub = pb_grpc.ShardServiceStub(channel)
        until = begin()
        clients = [
            threading.Thread(target=ask, args=(number, stub, until), daemon=True)
            for number in range(_CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(max(0.0, until - time.monotonic()) + 1.0)
    return {"refused": sum(refused)}


ATTACK = Attack("large mixtures", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
