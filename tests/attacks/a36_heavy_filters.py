"""Twelve callers of one address whose filters take long, and a job elsewhere that needs its own.

The server has no tokens, so the address is all that tells them apart.
"""

from __future__ import annotations

import itertools
import select
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc

from attacks.a28_one_call_each import Client
from attacks.harness import DATASET, After, Attack, Begin, Counts, Target, main
from attacks.http2 import connected, header_block
from headrace.v1 import shard_service_pb2 as pb
from support.asking import asking
from support.datasets import small_table, write_dataset
from support.served import stub_of

_HOGS, _SOURCE = 12, "127.0.0.2"
_HEAVY, _ROWS = "heavy", 200_000
_METHOD = "/headrace.v1.ShardService/GetDataset"
_ANSWERS, _AGAIN_S = 20, 0.1
# In less than this nobody has an answer: hogs and the job take turns, with rests.
_LEAST_S = 3.0


def _datasets(folder: Path) -> dict[str, str]:
    url = str(folder / _HEAVY)
    write_dataset(url, small_table(_ROWS), shard_samples=[_ROWS], block_bytes=16_384)
    return {_HEAVY: url}


def _strike(target: Target, begin: Begin) -> Counts:
    counts = {"answers to hogs": 0, "answers to the other job": 0}
    over = threading.Event()
    job = threading.Thread(target=_job, args=(target, counts, over))
    until = max(begin(), time.monotonic() + _LEAST_S)
    job.start()
    _hog(target, counts, until)
    over.set()
    job.join()
    return counts


def _hog(target: Target, counts: dict[str, int], until: float) -> None:
    block = header_block(_METHOD)
    numbers = itertools.count()

    def request() -> bytes:
        where = " and ".join(f"name != 'sample {next(numbers)}'" for _ in range(64))
        return asking(pb.GetDatasetRequest, name=_HEAVY, where=where).SerializeToString()

    with ExitStack() as stack, select.epoll() as events:
        hogs: dict[int, Client] = {}
        for _ in range(_HOGS):
            hog = Client(stack.enter_context(connected(target.place, source=_SOURCE)))
            hogs[hog.connection.fileno()] = hog
            events.register(hog.connection, select.EPOLLIN)
            hog.ask(block, request())
        while time.monotonic() < until:
            for number, _ in events.poll(0.1):
                if hogs[number].is_answered():
                    counts["answers to hogs"] += 1
                    hogs[number].ask(block, request())


def _job(target: Target, counts: dict[str, int], over: threading.Event) -> None:
    with grpc.insecure_channel(target.address) as channel:
        ask: Any = stub_of(channel).GetDataset
        for number in range(1, _ANSWERS + 1):
            request = asking(pb.GetDatasetRequest, name=DATASET, where=f"number < {number * 10}")
            while not over.is_set():
                try:
                    ask(request, timeout=20)
                except grpc.RpcError:
                    # It is being found, or the server is busy: a client asks again.
                    over.wait(_AGAIN_S)
                else:
                    counts["answers to the other job"] += 1
                    break


def _check(after: After) -> list[str]:
    found, least = after.counts["answers to the other job"], min(_ANSWERS, int(after.seconds / 2))
    return [] if found >= least else [f"the other job has {found:.0f} answers to its filters"]


ATTACK = Attack("heavy filters", _strike, datasets=_datasets, check=_check, has_tokens=False)

if __name__ == "__main__":
    sys.exit(main(ATTACK))
