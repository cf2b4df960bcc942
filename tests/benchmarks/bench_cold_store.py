"""Read through a cold cache from a store with the latencies of S3, and hold it against the parts.

``PYTHONPATH=tests python tests/benchmarks/bench_cold_store.py rate --gib 5`` serves a dataset ten
times the cache's half from `support.slow_store` (lognormal time to the first byte, 20 ms in the
median and 150 ms for one in a hundred, 80 MB/s a connection, a 503 for one GET in a thousand) with
a fresh ``headrace serve`` whose cache is twice ``shuffle_bytes``, and prints for a whole epoch

- MiB/s of samples, GETs and stored bytes as the store counted them, GETs in flight, and processor
  time of the server in seconds a GiB;
- *touched*: before that, the processor time in which the server touched its cache's memory for the
  first time, in seconds a GiB of the cache. A server does so once, in its first seconds, and
  ``--fresh`` reads at once instead of waiting for it;
- *again*: the next epoch of the same server;
- *reading*: our reader of the store alone, in a process of its own, at the same mean length of a
  GET and as many at once as the server had at most, its rate *a* and its processor time;
- *warm*: the same server over a dataset that its cache holds, its rate *b* and processor time;
- the rate over 1 / (1/a + 1/b), which is what two processors would give that did one after the
  other, and the processor time beyond warm and reading.

``pace`` reads as `RemoteDataset` does, at a part of the rate that the same loop reached unpaced,
and prints what it waited beyond what the call for a batch takes in the median, how long the slowest
batches took, and which were late, by epoch and step; first for all batches but the very first, then
without the first 16 too, which the store has little time to send ahead. ``first`` prints the time
to the first batch of 16 MiB, at the beginning of an epoch and in its middle, of fresh servers and
with a constant 20 ms to the first byte, and what was fetched by then. ``down`` reads as ``pace``
does, closes the store for 20 s in the middle, and prints when the first batch came after that, and
from when on 32 batches in a row were in time.

Figures of one run can be compared, those of different runs hardly.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench_server import READ, grpc_messages, next_batch, open_channel
from headrace.bench import WORKLOADS
from headrace.bench.children import Serving, serving
from headrace.client import Order, RemoteDataset
from headrace.client.wire.frames import keep_freed_memory
from headrace.storage import SHARD_FOLDER, ShardWriter, commit_dataset, open_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb
from support.slow_store import Counted, SlowStore, reached, slow_store
from support.threads import at_once

_GIB, _MIB = 1 << 30, 1 << 20
_SHARD_BYTES = 64 * _MIB
_LATE_S = 0.02
_FIRST_BATCHES = 16
_DOWN_S = 20.0
_IN_A_ROW = 32
_IDLE_S = 0.03
_S3 = {"median_ms": 20.0, "p99_ms": 150.0, "mb_per_s": 80.0, "refused": 0.001}


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is measured on."""

    store: SlowStore
    folder: Path
    workload: str
    batch_size: int
    shuffle_bytes: int
    cache_bytes: int
    ranks: int
    options: tuple[str, ...]
    is_fresh: bool

    @contextmanager
    def server(self) -> Iterator[Serving]:
        urls = {name: f"s3://bucket/{name}" for name in ("cold", "warm")}
        options = (f"--cache-bytes={self.cache_bytes}", "--log-level=warning", *self.options)
        with serving(urls, *options) as server:
            began_s = server.processor_s()
            if not self.is_fresh:
                _wait_idle(server)
                touched_s = server.processor_s() - began_s
                print(f"{'touched':<9}{'':>11}{touched_s / self.cache_bytes * _GIB:>11.2f}")
            yield server

    def order(self) -> Order:
        return Order(shuffle_bytes=self.shuffle_bytes)


@dataclass(frozen=True, slots=True)
class _Rate:
    """What one pass over samples took."""

    mib_s: float
    cpu_s_gib: float
    counted: Counted | None = None


def main() -> None:
    """Write, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("rate", "pace", "first", "down"))
    parser.add_argument("--gib", type=float, default=5.0, help="size of the dataset")
    parser.add_argument("--kind", default="images", choices=[each.name for each in WORKLOADS])
    parser.add_argument("--ranks", type=int, default=1, help="streams of one run")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.6, help="part of the unpaced rate")
    parser.add_argument("--epochs", type=int, default=1, help="of the paced loop, in one stream")
    parser.add_argument(
        "--stalled", type=float, default=0.0, help="part of GETs that stall for 5 s"
    )
    parser.add_argument("--option", action="append", default=[], help="of headrace serve")
    parser.add_argument("--fresh", action="store_true", help="read from servers that just started")
    given = parser.parse_args()
    keep_freed_memory()
    shuffle_bytes = int(given.gib * _GIB) // 20
    (workload,) = (each for each in WORKLOADS if each.name == given.kind)
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}; {given.kind}, {given.gib:g} GiB, shuffle_bytes "
        f"{shuffle_bytes // _MIB} MiB, cache twice that, {given.ranks} ranks, "
        f"{'TLS' if given.tls else 'HTTP'}, {' '.join(given.option)}"
    )
    settings = _S3 | {"stalled": given.stalled}
    if given.what == "first":
        settings = {"median_ms": 20.0, "p99_ms": 20.0, "mb_per_s": 80.0}
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_store(Path(folder), tls=given.tls, **settings) as store,
        reached(store),
    ):
        write(Path(folder, "cold"), workload.name, raw_bytes=int(given.gib * _GIB))
        write(Path(folder, "warm"), workload.name, raw_bytes=shuffle_bytes)
        setting = _Setting(
            store,
            Path(folder),
            workload.name,
            # Of many ranks, so that a global batch is a part of what the smaller dataset holds.
            max(1, workload.batch_size * min(4, given.ranks) // given.ranks),
            shuffle_bytes,
            2 * shuffle_bytes,
            given.ranks,
            tuple(f"--{option}" for option in given.option),
            given.fresh or given.what == "first",
        )
        if given.what == "rate":
            _print_rates(setting, given.rounds)
        elif given.what == "pace":
            _print_pace(setting, given.pace, given.epochs)
        elif given.what == "down":
            _print_down(setting, given.pace)
        else:
            _print_first(setting, given.rounds)


def _wait_idle(server: Serving) -> None:
    """Wait until a server does nothing any more."""
    after_s = server.processor_s()
    while True:
        time.sleep(0.5)
        before_s, after_s = after_s, server.processor_s()
        if after_s - before_s < _IDLE_S:
            return


def write(folder: Path, kind: str, *, raw_bytes: int) -> None:
    """Write a dataset: one real shard of 64 MiB, under as many names as make so many bytes."""
    (workload,) = (each for each in WORKLOADS if each.name == kind)
    store = open_store(str(folder))
    table = workload.make(
        min(_SHARD_BYTES, raw_bytes) // workload.sample_bytes, np.random.default_rng(7)
    )
    with ShardWriter(store, "00000.arrow", schema=table.schema) as writer:
        for batch in table.to_batches(max_chunksize=max(1, _MIB // workload.sample_bytes)):
            writer.append(batch)
        entry = writer.close()
    (shard,) = folder.rglob("00000.arrow")
    entries = [
        dataclasses.replace(entry, name=f"{number:05d}.arrow")
        for number in range(max(1, round(raw_bytes / table.nbytes)))
    ]
    for each in entries[1:]:
        shard.with_name(each.name).hardlink_to(shard)
    commit_dataset(store, table.schema, entries)
    store.close()


def _print_rates(setting: _Setting, rounds: int) -> None:
    heads = ("MiB/s", "CPU s/GiB", "GETs/GiB", "KiB", "in flight", "most", "fetched", "503")
    print(f"{'':<9}" + "".join(f"{head:>11}" for head in heads))
    stored_gib = open_dataset(str(setting.folder / "cold")).stored_bytes / _GIB
    ratios, extras, later_extras = [], [], []
    for _ in range(rounds):
        with setting.server() as server:
            cold = _read(setting, server, "cold")
            later = _read(setting, server, "cold", first_epoch=1)
            _read(setting, server, "warm")
            warm = _read(setting, server, "warm", epochs=3)
        counted = cold.counted
        assert counted is not None
        _print_row(
            "cold",
            cold,
            f"{counted.gets / stored_gib:.0f}",
            f"{counted.bytes / counted.gets / 1024:.0f}",
            f"{counted.in_flight:.1f}",
            f"{counted.most_in_flight}",
            f"{counted.bytes / stored_gib / _GIB:.3f}",
            f"{counted.refused}",
        )
        _print_row("again", later)
        _print_row("warm (b)", warm)
        reading = _read_alone(setting, counted)
        _print_row("alone (a)", reading)
        print(f"{'store':<9}{'':>11}{counted.cpu_s / counted.bytes * _GIB:>11.2f}")
        ratios.append(cold.mib_s * (1 / warm.mib_s + 1 / reading.mib_s))
        beside = warm.cpu_s_gib + reading.cpu_s_gib
        extras.append(cold.cpu_s_gib - beside)
        later_extras.append(later.cpu_s_gib - beside)
    print(
        f"rate over 1/(1/a + 1/b): {statistics.median(ratios):.2f}; CPU s/GiB beyond warm and "
        f"reading: {statistics.median(extras):.2f}, again {statistics.median(later_extras):.2f}"
    )


def _print_row(name: str, rate: _Rate, *more: str) -> None:
    cells = [f"{rate.mib_s:.0f}", f"{rate.cpu_s_gib:.2f}", *more]
    print(f"{name:<9}" + "".join(f"{cell:>11}" for cell in cells), flush=True)


def _read(
    setting: _Setting, server: Serving, dataset: str, *, first_epoch: int = 0, epochs: int = 1
) -> _Rate:
    """Read whole epochs, all ranks at once, and count."""
    before, cpu_s = setting.store.counted(), server.processor_s()
    sizes = [0] * setting.ranks

    def read(rank: int) -> None:
        request = pb.ReadBatchesRequest(
            dataset=dataset,
            order=pb.OrderSpec(shuffle_bytes=setting.shuffle_bytes),
            global_batch_size=setting.batch_size * setting.ranks,
            rank=rank,
            world_size=setting.ranks,
            epoch_count=epochs,
            epoch_start=pb.EpochStart(epoch=first_epoch),
            max_group_bytes=1 << 20,
        ).SerializeToString()
        with (
            open_channel(server.address) as channel,
            closing(grpc_messages(channel, READ, request)) as messages,
        ):
            for message in messages:
                sizes[rank] += len(message)

    began = time.perf_counter()
    at_once(read, range(setting.ranks))
    seconds = time.perf_counter() - began
    cpu_s = server.processor_s() - cpu_s
    counted = setting.store.counted().since(before)
    return _Rate(sum(sizes) / _MIB / seconds, cpu_s / sum(sizes) * _GIB, counted)


_READER = """
import itertools, json, os, random, sys, threading, time
from headrace.storage import open_store
length, streams, total, count, size = map(int, sys.argv[1:])
store = open_store("s3://bucket/cold/shards")
turns, lock = itertools.count(), threading.Lock()
store.read("00000.arrow", offset=0, length=1)
def read():
    while next(turns) < total // length:
        shard = f"{random.randrange(count):05d}.arrow"
        store.read(shard, offset=random.randrange(max(1, size - length)), length=length)
began, cpu = time.perf_counter(), time.process_time()
threads = [threading.Thread(target=read) for _ in range(streams)]
for thread in threads: thread.start()
for thread in threads: thread.join()
done = total // length * length
print(json.dumps([done / 2**20 / (time.perf_counter() - began),
                  (time.process_time() - cpu) / done * 2**30]))
"""


def _read_alone(setting: _Setting, counted: Counted) -> _Rate:
    shards = sorted(Path(setting.folder, "cold", SHARD_FOLDER).glob("*.arrow"))
    length = counted.bytes // counted.gets
    total = min(2 * _GIB, counted.bytes)
    arguments = (length, counted.most_in_flight, total, len(shards), shards[0].stat().st_size)
    found = subprocess.run(
        [sys.executable, "-c", _READER, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    if found.stderr:
        sys.exit(found.stderr)
    rate, cpu_s_gib = map(float, found.stdout.strip("[]\n").split(","))
    return _Rate(rate, cpu_s_gib)


def _print_pace(setting: _Setting, part: float, epochs: int) -> None:
    with setting.server() as server:
        unpaced = _loop(setting, server, period_s=0.0)
    period_s = float(unpaced.sum()) / unpaced.size / part
    with setting.server() as server:
        before = setting.store.counted()
        waits = _loop(setting, server, period_s=period_s, epochs=epochs)
        stalled = setting.store.counted().since(before).stalled
    late = ", ".join(
        f"{at // unpaced.size}:{at % unpaced.size}" for at in np.flatnonzero(waits > _LATE_S)
    )
    print(
        f"unpaced {1 / (period_s * part):.1f} batches/s; paced at {part:.0%} of it; late, by epoch "
        f"and step: {late or 'none'}; {stalled} GETs stalled"
    )
    # The first batch is another figure.
    for first in (1, _FIRST_BATCHES):
        left = waits[first:] * 1000
        p99, p999 = np.percentile(left, [99, 99.9])
        usual = float(np.median(left))
        waited = np.maximum(left - usual, 0.0).mean() / period_s / 10
        print(
            f"from batch {first} on ({left.size}): waited {waited:.2f} % of the time beyond the "
            f"median of {usual:.3f}, P99 {p99:.1f}, P99.9 {p999:.1f}, most {left.max():.0f} ms"
        )


def _print_down(setting: _Setting, part: float) -> None:
    with setting.server() as server:
        unpaced = _loop(setting, server, period_s=0.0)
    period_s = float(unpaced.sum()) / unpaced.size / part
    with setting.server() as server:
        began = time.perf_counter()
        up_s = unpaced.size * period_s / 2 + _DOWN_S
        timers = [
            threading.Timer(up_s - _DOWN_S, setting.store.set, ("down", 1)),
            threading.Timer(up_s, setting.store.set, ("down", 0)),
        ]
        for timer in timers:
            timer.start()
        waits = _loop(setting, server, period_s=period_s)
        seconds = time.perf_counter() - began
    came = np.cumsum(waits + period_s) - period_s
    after = np.flatnonzero(came > up_s)
    late = waits[after] > _LATE_S
    steady = next(at for at in range(late.size) if not late[at : at + _IN_A_ROW].any())
    print(
        f"paced at {1 / period_s:.1f} batches/s for {seconds:.0f} s, {waits.size} batches; the "
        f"store was away from {up_s - _DOWN_S:.1f} to {up_s:.1f} s; longest wait {waits.max():.2f} "
        f"s; after its return the first batch came after {came[after[0]] - up_s:.2f} s, and they "
        f"came in time from {came[after[steady]] - up_s:.2f} s on"
    )


def _loop(
    setting: _Setting, server: Serving, *, period_s: float, epochs: int = 1
) -> NDArray[np.float64]:
    """Read as a trainer does, whose step takes so long; return what each batch took."""
    dataset = RemoteDataset(
        server.address,
        "cold",
        batch_size=setting.batch_size,
        order=setting.order(),
        epochs=epochs,
    )
    waits: list[float] = []
    for _ in range(epochs):
        batches = iter(dataset)
        began = time.perf_counter()
        while next(batches, None) is not None:
            waits.append(time.perf_counter() - began)
            # Like a GPU, which takes as long whenever its batch came.
            time.sleep(period_s)
            began = time.perf_counter()
    return np.array(waits)


def _print_first(setting: _Setting, rounds: int) -> None:
    samples = open_dataset(str(setting.folder / "cold")).sample_count
    print(f"{'first batch':<16}{'ms':>8}{'most':>8}{'MiB':>8}{'GETs':>8}{'at once':>9}")
    for name, position in (("of an epoch", 0), ("in its middle", samples // 2)):
        found = [_first(setting, position) for _ in range(rounds)]
        times, counts = zip(*found, strict=True)
        print(
            f"{name:<16}{statistics.median(times):>8.0f}{max(times):>8.0f}"
            f"{statistics.median([one.bytes for one in counts]) / _MIB:>8.0f}"
            f"{statistics.median([one.gets for one in counts]):>8.0f}"
            f"{max(one.most_in_flight for one in counts):>9}"
        )


def _first(setting: _Setting, position: int) -> tuple[float, Counted]:
    request = pb.ReadBatchesRequest(
        dataset="cold",
        order=pb.OrderSpec(shuffle_bytes=setting.shuffle_bytes),
        global_batch_size=setting.batch_size,
        world_size=1,
        epoch_start=pb.EpochStart(position=position),
    ).SerializeToString()
    with setting.server() as server, open_channel(server.address) as channel:
        before, began = setting.store.counted(), time.perf_counter()
        with closing(grpc_messages(channel, READ, request)) as messages:
            next_batch(messages)
            seconds = time.perf_counter() - began
            return seconds * 1000, setting.store.counted().since(before)


if __name__ == "__main__":
    main()
