"""Measure batches in shared memory against the other ways out of a server on the same host.

``PYTHONPATH=tests python tests/benchmarks/bench_ring.py`` writes four kinds of samples, reads them
shuffled, and prints for each kind the payload MiB a second of

- *ring*: `RemoteDataset` over the server's unix socket, in shared memory; the loop takes each
  batch's tensors;
- *hashed*: the same with ``check_payload``;
- *grpc*: the same over the same socket with ``Transport("grpc")``;
- *tcp* and *lane*: over TCP, in gRPC's messages and on a lane;
- *flight*: an Arrow Flight server with its best gather, over a unix socket;
- *bare*: a process that gathers the same number of random rows into shared memory as fast as NumPy
  does, and says so with a byte over a socket pair; nothing is decoded: the ceiling.

Then what the ring reaches of each, and the processor seconds of the client a GB. Servers run in
processes of their own, all clients in this one; every figure is the median of
interleaved rounds out of warm caches. ``--ranks 8`` reads with several processes at once instead,
each one rank of the host, and prints the sum, and the server's processor time a GB.
``--picture FILE`` draws samples a second by transport; that of the README is of
``--ways ring tcp lane flight --rounds 5 --seconds 1.5``.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import multiprocessing
import os
import platform
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.flight_baseline import read_sizes, serve_flight
from headrace.bench.children import processor_s
from headrace.client import Batch, RemoteDataset, Ring, Transport
from headrace.loadtest.report.style import LIGHT, drawing
from headrace.server import ServerConfig, start_server
from headrace.server.transports.lane import LaneSettings
from headrace.storage import ShardWriter, commit_dataset, open_dataset, open_store

_TEXT_BYTES = 400
"""Of a text in the mean; each has half to one and a half times as many."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sample."""

    name: str
    samples: int
    batch_size: int
    make: Callable[[np.random.Generator], Any]


CASES = (
    Case("rows", 200_000, 256, lambda rng: rng.random(40, np.float32)),
    Case("tokens", 16_000, 64, lambda rng: rng.integers(0, 50_000, 4096, np.uint16)),
    Case("texts", 200_000, 256, lambda rng: rng.bytes(int(rng.integers(100, 301))).hex()),
    Case("images", 4_000, 64, lambda rng: rng.bytes(65_536)),
)

_SLOTS = 4
# The sizes of batches that the ring's speed is promised for; ``--small`` takes the cases' own.
_BATCH_SIZES = {"rows": 4096, "tokens": 32, "texts": 1024, "images": 256}
# From here on NumPy copies rows faster one by one.
_ROW_BY_ROW_BYTES = 4096
_WARM_S = 2.0
_WAYS = {
    "ring": Transport("ring"),
    "hashed": Transport("ring", [Ring(check_payload=True)]),
    "grpc": Transport("grpc"),
    "tcp": Transport("grpc"),
    "lane": Transport("lane"),
}
_OVER_TCP = ("tcp", "lane")
_SPAWN = multiprocessing.get_context("spawn")

_TITLES = {
    "ring": ("shared memory", LIGHT[0]),
    "lane": ("lane", LIGHT[2]),
    "tcp": ("gRPC", LIGHT[5]),
    "flight": ("Arrow Flight", LIGHT[8]),
}
"""What a picture shows, from below."""

Sizes = Generator[int, None, None]


@dataclass(frozen=True, slots=True)
class _Child:
    """A process of ours."""

    pipe: Connection
    pid: int


@dataclass(frozen=True, slots=True)
class _Found:
    """What one round of one way came to.

    Attributes:
        rate: Payload bytes a second.
        client_s: Processor seconds of the client a GB.
        server_s: Those of our server.
    """

    rate: float
    client_s: float
    server_s: float


def main() -> None:
    """Print the table."""
    given = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, {given.rounds} rounds of {given.seconds} s, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    samples_s: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="headrace-") as root:
        for case in _cases(given):
            folder = Path(given.data or root, case.name)
            _write(case, folder / "ours")
            if given.prepare:
                continue
            if given.ranks:
                _measure_ranks(case, folder, Path(root), given)
            else:
                rounds = _measure(case, folder, Path(root), given)
                samples_s[case.name] = _samples_a_second(case, rounds)
    if given.picture:
        _draw(samples_s, given.picture)


def _samples_a_second(case: Case, rounds: list[dict[str, _Found]]) -> dict[str, float]:
    size = _sample_bytes(case)
    return {way: statistics.median(found[way].rate for found in rounds) / size for way in rounds[0]}


def _draw(samples_s: dict[str, dict[str, float]], picture: str) -> None:
    """Draw a panel a kind of samples, and in it a bar a transport."""
    with drawing(Path(picture), size=(9, 2.1)) as figure:
        panels = figure.subplots(1, len(samples_s), sharey=True)
        shown = [name for name in _TITLES if name in next(iter(samples_s.values()))]
        for panel, (kind, found) in zip(panels, samples_s.items(), strict=True):
            bars = panel.barh(
                [_TITLES[name][0] for name in shown],
                [found[name] for name in shown],
                color=[_TITLES[name][1] for name in shown],
            )
            panel.bar_label(bars, [_short(found[name]) for name in shown], padding=3)
            panel.set_xlim(0, 1.35 * max(found[name] for name in shown))
            panel.set_title(f"{kind}, samples/s", fontsize="medium")
            panel.set_xticks([])
            panel.grid(visible=False)


def _short(number: float) -> str:
    return f"{number / 1e6:.1f} M" if number >= 1e6 else f"{number / 1e3:.0f} k"


def _cases(given: argparse.Namespace) -> list[Case]:
    chosen = [case for case in CASES if case.name in given.cases]
    if given.small:
        return chosen
    return [replace(case, batch_size=_BATCH_SIZES[case.name]) for case in chosen]


def _measure(
    case: Case, folder: Path, sockets: Path, given: argparse.Namespace
) -> list[dict[str, _Found]]:
    with ExitStack() as stack:
        place = str(folder / "ours")
        ours, server = stack.enter_context(_process(_serve_ours, case.name, place, str(sockets)))
        others = (place, case.batch_size, str(sockets))
        ways: dict[str, Callable[[], Sizes]] = {}
        for name in given.ways:
            if name == "flight":
                flight, _ = stack.enter_context(_process(_serve_flight, *others))
                ways[name] = partial(read_sizes, flight, "gather")
            elif name == "bare":
                bare, _ = stack.enter_context(_process(_serve_bare, *others))
                ways[name] = partial(_bare, bare)
            else:
                address = ours[name in _OVER_TCP]
                ways[name] = partial(_ours, case, address, transport=_WAYS[name])
        # Until the server has loaded its compiled loops, and all pages are touched.
        _rate(ways["ring"](), _WARM_S, server.pid)
        rounds = [
            {name: _rate(way(), given.seconds, server.pid) for name, way in ways.items()}
            for _ in range(given.rounds)
        ]
    _print(case, rounds)
    return rounds


def _print(case: Case, rounds: list[dict[str, _Found]]) -> None:
    batch_bytes = case.batch_size * _sample_bytes(case)
    for name in rounds[0]:
        rate = statistics.median(found[name].rate for found in rounds)
        ratio = statistics.median(found["ring"].rate / found[name].rate for found in rounds)
        client = statistics.median(found[name].client_s for found in rounds)
        server = statistics.median(found[name].server_s for found in rounds)
        print(
            f"{case.name:8} {batch_bytes / 2**20:6.2f} MiB {name:8} {rate / 2**20:7.0f} MiB/s   "
            f"ring/it {ratio:6.2f}   client {client:6.3f} CPU s/GB "
            f"{client * batch_bytes / 1e3:6.0f} us/batch   our server {server:6.3f} CPU s/GB",
            flush=True,
        )


def _rate(sizes: Sizes, seconds: float, server: int) -> _Found:
    """Measure a way, the first half second left out."""
    with closing(sizes):
        _drain(sizes, 0.5)
        ours, theirs = time.process_time(), processor_s(server)
        received, elapsed = _drain(sizes, seconds)
        ours, theirs = time.process_time() - ours, processor_s(server) - theirs
    return _Found(received / elapsed, ours / received * 1e9, theirs / received * 1e9)


def _drain(sizes: Sizes, seconds: float) -> tuple[int, float]:
    began, received = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        received += next(sizes)
    return received, time.perf_counter() - began


def _ours(
    case: Case, address: str, *, transport: Transport, rank: int = 0, ranks: int = 1
) -> Sizes:
    share: dict[str, Any] = {"batch_size": case.batch_size, "rank": rank, "world_size": ranks}
    dataset = RemoteDataset(address, case.name, seed=7, transport=transport, **share)
    sample = _sample_bytes(case)
    with closing(dataset):
        batches = itertools.chain.from_iterable(itertools.repeat(dataset))
        yield next(batches).sample_count * sample
        assert dataset.stats().transport == transport.kind, dataset.stats()
        for batch in batches:
            _take(batch)
            yield batch.sample_count * sample


def _take(batch: Batch) -> None:
    """Do with a batch what a loop does at least: take its tensors, and count its strings."""
    for values in batch.values():
        if isinstance(values, torch.Tensor):
            values.data_ptr()
        else:
            len(values)


def _sample_bytes(case: Case) -> int:
    """Return what a sample has in the mean."""
    made = case.make(np.random.default_rng(0))
    if isinstance(made, str):
        return _TEXT_BYTES
    return len(made) if isinstance(made, bytes) else int(made.nbytes)


def _bare(path: str) -> Sizes:
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        said, fds, _, _ = socket.recv_fds(link, 8, 1)
        os.close(fds[0])
        size = int.from_bytes(said, "little")
        while ready := link.recv(_SLOTS):
            for _ in ready:
                yield size
                link.send(b".")


# The rest runs in processes of its own; each says where it listens, and ends when told to.


def _serve_ours(pipe: Connection, name: str, folder: str, sockets: str) -> None:
    config = ServerConfig(
        datasets={name: folder},
        listen=(f"unix:{sockets}/{name}.sock", "127.0.0.1:0"),
        log_level="warning",
        plugs=(LaneSettings(lane="auto"),),
    )
    with start_server(config) as server:
        pipe.send(server.addresses)
        pipe.recv()


def _serve_flight(pipe: Connection, folder: str, batch_size: int, sockets: str) -> None:
    name = Path(folder).parent.name
    serve_flight((folder, batch_size), pipe, location=f"grpc+unix://{sockets}/{name}.flight")


def _serve_bare(pipe: Connection, folder: str, batch_size: int, sockets: str) -> None:
    rows, sample = _rows(folder)
    order = np.random.default_rng(7).permutation(len(rows))
    path = f"{sockets}/{Path(folder).parent.name}.bare"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        pipe.send(path)
        while True:
            link, _ = listener.accept()
            with link:
                _gather_into(link, rows, order, batch_size * sample)


def _rows(folder: str) -> tuple[NDArray[np.void], int]:
    """Return all rows of the column as items of one size, which all of these samples have."""
    with open_dataset(folder) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    column: Any = pa.Table.from_batches(blocks).combine_chunks().column(0).chunk(0)
    is_list = pa.types.is_fixed_size_list(column.type)
    buffers = (column.flatten() if is_list else column).buffers()
    values = np.frombuffer(buffers[-1], np.uint8)
    sample = values.size // len(column)
    return values[: sample * len(column)].view(np.dtype((np.void, sample))), sample


def _gather_into(
    link: socket.socket, rows: NDArray[np.void], order: NDArray[np.int64], size: int
) -> None:
    fd = os.memfd_create("bare")
    os.ftruncate(fd, _SLOTS * size)
    memory = np.frombuffer(mmap.mmap(fd, _SLOTS * size), np.uint8)
    slots = [memory[i * size : (i + 1) * size].view(rows.dtype) for i in range(_SLOTS)]
    socket.send_fds(link, [size.to_bytes(8, "little")], [fd])
    os.close(fd)
    count, free = len(slots[0]), _SLOTS
    starts = itertools.cycle(range(0, len(order) - count + 1, count))
    try:
        for slot, start in zip(itertools.cycle(slots), starts, strict=False):
            while not free:
                freed = len(link.recv(_SLOTS))
                if not freed:
                    return
                free += freed
            _gather(rows, order[start : start + count], slot)
            link.send(b".")
            free -= 1
    except OSError:
        return


def _gather(rows: NDArray[np.void], ids: NDArray[np.int64], slot: NDArray[np.void]) -> None:
    if rows.dtype.itemsize < _ROW_BY_ROW_BYTES:
        np.take(rows, ids, out=slot, mode="clip")
        return
    for place, row in enumerate(ids.tolist()):
        slot[place] = rows[row]


def _measure_ranks(case: Case, folder: Path, sockets: Path, given: argparse.Namespace) -> None:
    for transport in ("ring", "grpc"):
        with _process(_serve_ours, case.name, str(folder / "ours"), str(sockets)) as (ours, server):
            with ExitStack() as stack:
                readers = [
                    stack.enter_context(
                        _process(
                            _read_rank,
                            (case.name, case.batch_size),
                            ours[0],
                            (rank, given.ranks),
                            given.seconds,
                            transport,
                        )
                    )
                    for rank in range(given.ranks)
                ]
                pipes = [child.pipe for _, child in readers]
                # All are ready: they begin together.
                spent = processor_s(server.pid)
                for pipe in pipes:
                    pipe.send("go")
                found = [pipe.recv() for pipe in pipes]
                spent = processor_s(server.pid) - spent
            received = sum(size for size, _ in found)
            print(
                f"{case.name:8} {transport:5} {given.ranks} ranks "
                f"{sum(size / took for size, took in found) / 2**20:9.0f} MiB/s   server "
                f"{spent / received * 1e9:6.3f} CPU s/GB",
                flush=True,
            )


def _read_rank(
    pipe: Connection,
    read: tuple[str, int],
    address: str,
    place: tuple[int, int],
    *how: Any,
) -> None:
    (name, batch_size), (rank, ranks), (seconds, transport) = read, place, how
    case = replace(next(case for case in CASES if case.name == name), batch_size=batch_size)
    with closing(
        _ours(case, address, rank=rank, ranks=ranks, transport=Transport(transport))
    ) as sizes:
        _drain(sizes, 0.5)
        pipe.send("ready")
        pipe.recv()
        pipe.send(_drain(sizes, seconds))
        pipe.recv()


@contextmanager
def _process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[Any, _Child]]:
    """Run a function in a process of its own until the block ends; give what it said first."""
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=target, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    assert process.pid is not None
    try:
        yield ours.recv(), _Child(ours, process.pid)
    finally:
        process.terminate()
        process.join(10)


def _write(case: Case, folder: Path) -> None:
    if folder.exists():
        return
    rng = np.random.default_rng(7)
    samples = [case.make(rng) for _ in range(case.samples)]
    if isinstance(samples[0], np.ndarray):
        rows = np.stack(samples)
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
    else:
        column = pa.array(samples)
    table = pa.table({"x": column})
    with closing(open_store(str(folder))) as store:
        writer = ShardWriter(store, "part-0.arrow", schema=table.schema, compression="none")
        for batch in table.to_batches(max_chunksize=4096):
            writer.append(batch)
        commit_dataset(store, table.schema, [writer.close()])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="*", default=names, choices=names)
    ways = [*_WAYS, "flight", "bare"]
    parser.add_argument("--ways", nargs="*", default=ways, choices=ways, help="the ring among them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured of each way")
    parser.add_argument("--small", action="store_true", help="batches of some hundred samples")
    parser.add_argument("--ranks", type=int, default=0, help="this many readers at once instead")
    parser.add_argument("--data", help="a folder that keeps the samples for the next time")
    parser.add_argument("--picture", help="an SVG file, of samples a second by transport")
    parser.add_argument("--prepare", action="store_true", help="write the samples, and end")
    return parser.parse_args()


if __name__ == "__main__":
    main()
