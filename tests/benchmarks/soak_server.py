"""Watch the memory, the descriptors and the threads of a server for a long time.

``PYTHONPATH=tests:examples python -m benchmarks.soak_server [--minutes 60] [--streams 256]
[--step-s 1]`` serves a small dataset to client processes whose streams end and come again all the
time: some read a little and go, some read on until the server asks them to reconnect, some never
read; and every few seconds a client process is killed. It prints what the server has once a minute,
and ends with 1 if the last third of the time has more of anything at its median than the second
third, beyond a bound, or if no batch came in some minute.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import statistics
import sys
import tempfile
import threading
import time
from ctypes import Array, c_int64
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from headrace.bench.children import serving
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.served import rich_table, stub_of

_PROCESSES = 8
_KILL_S = 5.0
_TOGETHER = 8  # batches that a loop reads in one go
_READ_S, _STILL_S = (0.2, 20.0), (2.0, 20.0)
# What may be more in the last third: of memory a part, and MiB; of the others some.
_MORE = {"resident MiB": (1.05, 16.0), "descriptors": (1.05, 16.0), "threads": (1.05, 16.0)}


@dataclass(frozen=True, slots=True)
class Reading:
    """What a server has at one time."""

    seconds: float
    counts: dict[str, float]
    batches: int


def _read(address: str, seed: int, step_s: float, batches: Array[c_int64], place: int) -> None:
    """One stream after another, for ever."""
    chance = random.Random(seed)
    options = [("grpc.use_local_subchannel_pool", 1)]
    while True:
        with grpc.insecure_channel(address, options=options) as channel:
            request = pb.ReadBatchesRequest(
                dataset="soak",
                order=pb.OrderSpec(seed=chance.randrange(8)),
                global_batch_size=chance.choice((4, 16, 64)),
                columns=["number", "wide", "text", "maybe_ragged"],
                world_size=1,
                epoch_start=pb.EpochStart(),
            )
            call: Any = stub_of(channel).ReadBatches(request, timeout=60)
            try:
                if chance.random() < 0.1:
                    next(call)
                    time.sleep(chance.uniform(*_STILL_S))
                    continue
                until = time.monotonic() + chance.uniform(*_READ_S)
                for count in itertools.count():
                    next(call)
                    if count % _TOGETHER == 0:
                        batches[place] += _TOGETHER
                        # As a training loop: what is soaked is coming and going.
                        time.sleep(step_s)
                    if time.monotonic() > until:
                        break
            except (grpc.RpcError, StopIteration):
                time.sleep(chance.uniform(0.05, 0.5))
            finally:
                call.cancel()


def _client(address: str, seed: int, step_s: float, batches: Array[c_int64], places: range) -> None:
    for number, place in enumerate(places):
        threading.Thread(
            target=_read,
            args=(address, seed * len(places) + number, step_s, batches, place),
            daemon=True,
        ).start()
    threading.Event().wait()


def _counts(pid: int) -> dict[str, float]:
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return {
        "resident MiB": int(status["VmRSS"].split()[0]) / 1024,
        "descriptors": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def soak(seconds: float, streams: int, step_s: float) -> list[Reading]:
    """Serve for a while; return what the server had, once a second."""
    context = multiprocessing.get_context("forkserver")
    # So that clients which are killed come again soon.
    context.set_forkserver_preload(
        ["headrace.bench.children", "support.datasets", "support.served"]
    )
    # A count for each stream, and no lock: a client that is killed while it holds one keeps it, and
    # all other clients, and this process, would wait for ever.
    batches = context.RawArray(c_int64, streams)
    with tempfile.TemporaryDirectory() as folder:
        url = f"{folder}/soak"
        write_dataset(url, rich_table(2000), shard_samples=(1000, 1000), block_bytes=1 << 16)
        options = (
            f"--max-streams={streams + 64}",
            "--max-stream-s=15",
            "--cache-bytes=64MiB",
            "--payload-bytes=256MiB",
            "--log-level=error",
        )
        with serving({"soak": url}, *options) as server:
            seeds = itertools.count()

            def begun(number: int) -> multiprocessing.process.BaseProcess:
                each = streams // _PROCESSES
                places = range(number * each, (number + 1) * each)
                arguments = (server.address, next(seeds), step_s, batches, places)
                client = context.Process(target=_client, args=arguments, daemon=True)
                client.start()
                return client

            clients = [begun(number) for number in range(_PROCESSES)]
            readings = []
            began = killed = time.monotonic()
            while (now := time.monotonic()) - began < seconds:
                if now - killed > _KILL_S:
                    killed = now
                    victim = random.randrange(_PROCESSES)
                    clients[victim].kill()
                    clients[victim].join()
                    clients[victim] = begun(victim)
                counts = _counts(server.process.pid)
                readings.append(Reading(now - began, counts, sum(batches)))
                if len(readings) % 60 == 1:
                    print(_line(readings[-1]), flush=True)
                time.sleep(1)
            for client in clients:
                client.kill()
                client.join()
            print(_line(readings[-1]))
    return readings


def _line(reading: Reading) -> str:
    counts = ", ".join(f"{value:.0f} {name}" for name, value in reading.counts.items())
    return f"{reading.seconds / 60:6.1f} min: {counts}, {reading.batches:,} batches"


def wrong(readings: list[Reading]) -> list[str]:
    """Return what grew, and when nothing came."""
    third = len(readings) // 3
    found = []
    for name, (part, some) in _MORE.items():
        before, after = (
            statistics.median(one.counts[name] for one in readings[start : start + third])
            for start in (third, 2 * third)
        )
        print(f"{name}: {before:.0f} in the second third, {after:.0f} in the last")
        if after > before * part + some:
            found.append(f"{name} grew from {before:.0f} to {after:.0f}")
    minutes = readings[::60]
    found += [
        f"no batch in minute {number}"
        for number, (one, other) in enumerate(itertools.pairwise(minutes))
        if one.batches == other.batches
    ]
    return found


def main() -> int:
    """Soak a server, and say whether it is as it was."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument(
        "--step-s", type=float, default=1.0, help="of a loop, after 8 batches; more for an hour"
    )
    arguments = parser.parse_args()
    found = wrong(soak(60 * arguments.minutes, arguments.streams, arguments.step_s))
    print("\n".join(found) or "memory, descriptors and threads are flat")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
