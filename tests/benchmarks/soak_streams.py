"""Watch the memory, descriptors and threads of a server whose streams come and go, and are killed.

``PYTHONPATH=tests:examples python tests/benchmarks/soak_streams.py --minutes 60`` keeps 256 paced
streams open from two client processes. A stream lives for 1 to 30 s: it reads a batch a second,
then cancels, or reconnects with its token. Every 20 s one of the clients is killed with SIGKILL
and replaced. The time is cut into legs; after each leg all clients end, and what the quiet server
then holds is read. It exits with 1 if the last leg left more than the first: 16 MiB, two
descriptors, or a thread.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import grpc

from headrace.bench._children import Serving, serving
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc
from support.datasets import small_table, write_dataset

_STREAMS, _CLIENTS, _LEGS = 256, 2, 6
_KILL_EVERY_S = 20.0
_QUIET_S = 10.0
_MOST_MIB, _MOST_DESCRIPTORS, _MOST_THREADS = 16.0, 2, 0

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["headrace.v1.shard_service_pb2_grpc"])
# Python 3.11 preloads with its own path alone (python/cpython#117378).
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the server's process holds."""

    resident_mib: float
    descriptors: int
    threads: int

    def __str__(self) -> str:
        """Return it for a line of a table."""
        return f"{self.resident_mib:8.1f} MiB {self.descriptors:5} fds {self.threads:5} threads"


def reading(pid: int) -> Reading:
    """Look at a process."""
    process = Path(f"/proc/{pid}")
    pages = int((process / "statm").read_text().split()[1])
    return Reading(
        pages * 4096 / 2**20,
        len(list((process / "fd").iterdir())),
        len(list((process / "task").iterdir())),
    )


async def _stream(stub: Any, rank: int, counts: list[Any]) -> None:
    """Open one stream after the other; go on from the last token, now and then from the start."""
    token = b""
    while True:
        request = pb.ReadBatchesRequest(dataset="small", rank=rank, world_size=_STREAMS)
        request.global_batch_size = 4 * _STREAMS
        if token:
            request.resume_token = token
        else:
            request.epoch_start.epoch = rank
        lives_until = time.monotonic() + random.uniform(1, 30)
        call = stub.ReadBatches(request)
        try:
            async for response in call:
                if response.HasField("batch"):
                    token = response.batch.resume_token
                    _add(counts[0])
                    await asyncio.sleep(1)
                if time.monotonic() > lives_until:
                    break
            _add(counts[1])
        except grpc.aio.AioRpcError as error:
            _add(counts[2])
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                print(f"{error.code()}: {error.details()}", flush=True)
            await asyncio.sleep(1)
        finally:
            call.cancel()
        if random.random() < 0.2:
            token = b""


def _add(count: Synchronized[int]) -> None:
    with count.get_lock():
        count.value += 1


def _client(address: str, first: int, streams: int, counts: list[Any]) -> None:
    async def run() -> None:
        # A connection for 16 streams, as 16 ranks of a host would share none: a few of them.
        channels = [
            grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(streams // 16)
        ]
        stubs: list[Any] = [pb_grpc.ShardServiceStub(channel) for channel in channels]
        await asyncio.gather(
            *(_stream(stubs[n % len(stubs)], first + n, counts) for n in range(streams))
        )

    asyncio.run(run())


def _leg(server: Serving, seconds: float, counts: list[Any]) -> tuple[int, Reading]:
    """Keep the clients going and kill them in turn; return how many, and the server at the end."""
    share = _STREAMS // _CLIENTS

    def start(number: int) -> BaseProcess:
        client = _PROCESSES.Process(
            target=_client, args=(server.address, number * share, share, counts), daemon=True
        )
        client.start()
        return client

    clients = [start(number) for number in range(_CLIENTS)]
    until, kills = time.monotonic() + seconds, 0
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(_KILL_EVERY_S, left))
        victim = kills % _CLIENTS
        clients[victim].kill()
        clients[victim].join()
        kills += 1
        clients[victim] = start(victim)
    busy = reading(server.process.pid)
    for client in clients:
        client.kill()
        client.join()
    return kills, busy


def soak(minutes: float) -> bool:
    """Run the legs; return whether the server held as much after the last as after the first."""
    quiet: list[Reading] = []
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(folder, small_table(20_000), shard_samples=[5000] * 4, block_bytes=65536)
        with serving({"small": folder}, "--max-streams", "300", "--log-level", "error") as server:
            pid = server.process.pid
            print(f"before                {reading(pid)}", flush=True)
            for leg in range(_LEGS):
                counts = [_PROCESSES.Value("q") for _ in range(3)]
                seconds = 60 * minutes / _LEGS - _QUIET_S
                kills, busy = _leg(server, seconds, counts)
                time.sleep(_QUIET_S)
                quiet.append(reading(pid))
                batches, streams, errors = (count.value for count in counts)
                print(f"leg {leg + 1}, at its end     {busy}\n  quiet               {quiet[-1]}")
                print(
                    f"  {batches:,} batches, {streams:,} streams ended, {errors:,} failed, "
                    f"{kills} clients killed, {server.processor_s():.0f} s of processor time",
                    flush=True,
                )
    first, last = quiet[0], quiet[-1]
    return (
        last.resident_mib <= first.resident_mib + _MOST_MIB
        and last.descriptors <= first.descriptors + _MOST_DESCRIPTORS
        and last.threads <= first.threads + _MOST_THREADS
    )


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    is_flat = soak(parser.parse_args().minutes)
    print("flat" if is_flat else "it grew")
    sys.exit(0 if is_flat else 1)


if __name__ == "__main__":
    main()
