"""Streams that read a message now and then: never idle, never done."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any

import grpc

from attacks import a20_never_readers
from attacks.harness import Attack, Begin, Counts, Target, main
from headrace.v1 import shard_service_pb2 as pb
from support.served import stub_of

_STREAMS = 12
# Each stream reads a message every 0.6 s, 3 MiB at most.
_PAUSE_S = 0.05


def _strike(target: Target, begin: Begin) -> Counts:
    request = pb.ReadBatchesRequest(
        dataset="wide", global_batch_size=256, world_size=1, epoch_start=pb.EpochStart()
    )
    messages = ended = 0
    with ExitStack() as stack:

        def opened() -> Any:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(target.address, options=options))
            call: Any = stub_of(channel).ReadBatches(request, metadata=target.metadata)
            stack.callback(call.cancel)
            next(call)
            return call

        calls = [opened() for _ in range(_STREAMS)]
        until = begin()
        while time.monotonic() < until:
            try:
                next(calls[messages % _STREAMS])
            except grpc.RpcError:
                # It held more than its share while others waited for theirs.
                ended += 1
                calls[messages % _STREAMS] = opened()
            messages += 1
            time.sleep(_PAUSE_S)
    return {"streams": _STREAMS, "messages": messages, "ended": ended}


# The server of the never-readers: what they leave behind is met here.
ATTACK = Attack(
    "slow readers",
    _strike,
    options=a20_never_readers.ATTACK.options,
    datasets=a20_never_readers.ATTACK.datasets,
)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
