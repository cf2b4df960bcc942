"""Read through an empty cache from a store of 20 ms, with every default of server and order.

``PYTHONPATH=tests python tests/benchmarks/bench_defaults.py sizes --kind rows --gib 0.5 1 2 4 8``
reads two epochs of datasets of each size, with a fresh ``headrace serve`` for each, and prints for
each epoch MiB/s of samples, and what the store counted: bytes over those that are stored, and GETs
a GiB. The store is that of `bench_cold_store`.

``jobs`` reads an epoch of three datasets at once through one server, whose cache is large enough
for one of them, and prints for each what it fetched over what is stored and its samples a second
while all three read, and what the log says.

``boundary`` reads two epochs at ``--mib-s`` MiB/s from a store with a constant 20 ms to the first
byte, with a cache of 1.5 times what is shuffled together, and prints the longest time between two
batches beyond the loop's own, by place in the epochs, bytes fetched over bytes stored, and the most
memory of the server beyond what it took at its start.

``first`` prints the time to the first batch and what was fetched for it, of fresh servers and the
same store: at the start of epoch 0, and at the start of a later epoch.

Figures of one run can be compared, those of different runs hardly.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO
from urllib.request import urlopen

import numpy as np

from benchmarks.bench_cold_store import write
from benchmarks.bench_server import READ, grpc_messages, next_batch, open_channel
from headrace.bench import WORKLOADS, Workload
from headrace.client import Order, RemoteDataset
from headrace.client.wire.frames import keep_freed_memory
from headrace.order import DEFAULT_SHUFFLE_BYTES
from headrace.storage import open_dataset
from headrace.v1 import shard_service_pb2 as pb
from support.command import Serving, serving
from support.slow_store import SlowStore, reached, slow_store

_GIB, _MIB = 1 << 30, 1 << 20
_S3 = {"median_ms": 20.0, "p99_ms": 150.0, "mb_per_s": 80.0, "refused": 0.001}
_CONSTANT = {"median_ms": 20.0, "p99_ms": 20.0, "mb_per_s": 80.0}
_JOBS = 3
_PLACES = 10


def main() -> None:
    """Write, serve, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("sizes", "jobs", "boundary", "first"))
    parser.add_argument("--kind", default="images", choices=[each.name for each in WORKLOADS])
    parser.add_argument("--gib", type=float, nargs="+", default=[4.0], help="sizes of datasets")
    parser.add_argument("--mib-s", type=float, default=200.0, help="pace of the loop")
    parser.add_argument("--batch", type=int, default=0, help="its size; 0 for that of the kind")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    keep_freed_memory()
    (workload,) = (each for each in WORKLOADS if each.name == given.kind)
    batch = given.batch or workload.batch_size
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}; {given.what}, {given.kind}, batches of {batch}"
    )
    settings = _S3 if given.what in {"sizes", "jobs"} else _CONSTANT
    with (
        tempfile.TemporaryDirectory() as folder,
        slow_store(Path(folder), tls=False, **settings) as store,
        reached(store),
    ):
        for gib in given.gib:
            count = _JOBS if given.what == "jobs" else 1
            bench = _Bench(store, Path(folder), workload, gib, batch, count=count)
            if given.what == "sizes":
                bench.print_epochs()
            elif given.what == "jobs":
                bench.print_jobs()
            elif given.what == "boundary":
                bench.print_boundary(given.mib_s)
            else:
                bench.print_first(given.rounds)


class _Bench:
    """Datasets of one kind and size, in a store."""

    def __init__(
        self,
        store: SlowStore,
        folder: Path,
        workload: Workload,
        gib: float,
        batch: int,
        *,
        count: int,
    ) -> None:
        self._store, self._folder, self._workload, self._batch = store, folder, workload, batch
        self._gib = gib
        self._names = [f"{workload.name}-{gib:g}-{number}" for number in range(count)]
        for number, name in enumerate(self._names):
            # Of different sizes, since equal data would count as shared.
            write(folder / name, workload.name, raw_bytes=int(gib * _GIB) - number * _MIB)
        with open_dataset(str(folder / self._names[0])) as dataset:
            self._stored_bytes = dataset.stored_bytes
            self._raw_bytes = dataset.raw_bytes
            self._samples = dataset.sample_count
            self._blocks = dataset.block_count

    @contextmanager
    def _server(self, *options: str, log: IO[str] | None = None) -> Iterator[Serving]:
        urls = {name: f"s3://bucket/{name}" for name in self._names}
        with serving(urls, "--log-level=warning", *options, stderr=log) as server:
            yield server

    def print_epochs(self) -> None:
        """Read two epochs of one dataset."""
        with self._server() as server:
            for epoch in range(2):
                before, began = self._store.counted(), time.perf_counter()
                for _ in _messages(server, self._request(self._names[0], epoch)):
                    pass
                seconds = time.perf_counter() - began
                found = self._store.counted().since(before)
                print(
                    f"{self._gib:>5g} GiB, epoch {epoch}: {self._raw_bytes / _MIB / seconds:>6.0f} "
                    f"MiB/s, {found.bytes / self._stored_bytes:>6.3f} of the bytes, "
                    f"{found.gets / self._stored_bytes * _GIB:>6.0f} GETs a GiB",
                    flush=True,
                )

    def print_jobs(self) -> None:
        """Read an epoch of each dataset at once."""
        ends: dict[str, float] = {}
        sizes = dict.fromkeys(self._names, 0)
        at_first_end: list[dict[str, int]] = []
        with ExitStack() as stack:
            log = stack.enter_context(tempfile.TemporaryFile("w+"))
            port = 20_000 + os.getpid() % 20_000
            server = stack.enter_context(
                self._server(f"--metrics-listen=127.0.0.1:{port}", log=log)
            )
            began = time.perf_counter()

            def read(name: str) -> None:
                # A loop, which continues where a server asks it to reconnect.
                with RemoteDataset(
                    server.address, name, batch_size=self._batch, epochs=1
                ) as dataset:
                    for batch in dataset:
                        sizes[name] += batch.sample_count
                at_first_end.append(dict(sizes))
                ends[name] = time.perf_counter() - began

            _all_at_once([lambda name=name: read(name) for name in self._names])  # type: ignore[misc] # binds each
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                metrics = answer.read().decode()
            log.seek(0)
            said = log.read()
        first_s = min(ends.values())
        for name in self._names:
            line = f'headrace_store_fetched_blocks_total{{dataset="{name}"}} '
            fetched = float(metrics.partition(line)[2].split("\n", 1)[0])
            share = at_first_end[0][name] / sizes[name]
            print(
                f"{name}: {fetched / self._blocks:.2f} times its blocks, "
                f"{share * self._samples / first_s:,.0f} samples/s while all read, "
                f"{ends[name]:.0f} s in all"
            )
        print(said)

    def print_boundary(self, mib_s: float) -> None:
        """Read two epochs at a pace."""
        shuffle_bytes = min(DEFAULT_SHUFFLE_BYTES, int(self._gib * _GIB / 2.5))
        per_sample = self._raw_bytes / self._samples
        period_s = self._batch * per_sample / _MIB / mib_s
        with self._server(f"--cache-bytes={shuffle_bytes * 3 // 2}") as server:
            before, started_mib = self._store.counted(), _most_mib(server)
            with RemoteDataset(
                server.address,
                self._names[0],
                batch_size=self._batch,
                order=Order(shuffle_bytes=shuffle_bytes),
                epochs=2,
            ) as dataset:
                gaps = [np.array(list(_gaps(dataset, period_s))) for _ in range(2)]
            found = self._store.counted().since(before)
            used_mib = _most_mib(server) - started_mib
        print(
            f"{self._gib:g} GiB, {shuffle_bytes // _MIB} MiB shuffled, cache 1.5 times that; a "
            f"batch every {period_s * 1000:.1f} ms; fetched "
            f"{found.bytes / self._stored_bytes / 2:.4f} of the bytes of two epochs; first batch "
            f"{gaps[0][0] * 1000:.0f} ms; the server took {used_mib} MiB more at most, "
            f"{used_mib / shuffle_bytes * _MIB:.2f} times what is shuffled"
        )
        gaps[0] = gaps[0][1:]
        for epoch, each in enumerate(gaps):
            tenths = " ".join(f"{part.max() * 1000:.0f}" for part in np.array_split(each, _PLACES))
            print(
                f"epoch {epoch}, longest wait of each tenth, ms: {tenths}; its first "
                f"{each[0] * 1000:.0f}"
            )

    def print_first(self, rounds: int) -> None:
        """Start epochs with fresh servers."""
        for epoch in (0, 1):
            times, fetched = [], []
            for _ in range(rounds):
                with self._server() as server:
                    before, began = self._store.counted(), time.perf_counter()
                    request = self._request(self._names[0], epoch, group_bytes=0)
                    with (
                        open_channel(server.address) as channel,
                        closing(grpc_messages(channel, READ, request)) as messages,
                    ):
                        next_batch(messages)
                        times.append((time.perf_counter() - began) * 1000)
                        fetched.append(self._store.counted().since(before).bytes / _MIB)
            print(
                f"{self._gib:g} GiB, start of epoch {epoch}: {statistics.median(times):.0f} ms, "
                f"{max(times):.0f} at most; {statistics.median(fetched):.0f} MiB fetched by then"
            )

    def _request(self, name: str, epoch: int, *, group_bytes: int = 1 << 20) -> bytes:
        return pb.ReadBatchesRequest(
            dataset=name,
            order=pb.OrderSpec(unit=self._batch),
            global_batch_size=self._batch,
            world_size=1,
            epoch_count=1,
            epoch_start=pb.EpochStart(epoch=epoch),
            max_group_bytes=group_bytes,
        ).SerializeToString()


def _messages(server: Serving, request: bytes) -> Iterator[bytes]:
    with (
        open_channel(server.address) as channel,
        closing(grpc_messages(channel, READ, request)) as messages,
    ):
        yield from messages


def _most_mib(server: Serving) -> int:
    """Return the most memory that a server has held so far."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) >> 10


def _all_at_once(works: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _gaps(dataset: RemoteDataset, period_s: float) -> Iterator[float]:
    """Read an epoch as a trainer does, whose step takes so long; yield what each batch took."""
    batches = iter(dataset)
    began = time.perf_counter()
    while next(batches, None) is not None:
        yield time.perf_counter() - began
        time.sleep(period_s)
        began = time.perf_counter()


if __name__ == "__main__":
    main()
