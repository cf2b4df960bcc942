"""Measure the server against the wire: batches out of a warm cache, against what others send.

``PYTHONPATH=tests python tests/benchmarks/bench_server.py`` prints, for each kind of sample, the
payload bytes a second of one stream of

- *bare*: a gRPC server that yields one ready ``bytes`` of the same size over and over;
- *parts*: the same in messages of 2 MiB, as large as ours, the ceiling where batches are larger;
- *ready*: an Arrow Flight server that sends one ready record batch over and over;
- *gather*: an Arrow Flight server that gathers as many random rows, shard by shard, as fast as
  NumPy and Arrow do it, out of shards that lie decoded in memory, in an order worked out before;
- *headrace*: shuffled batches of ours;

then what headrace reaches of each, and of parts by processor time of server and client together,
which is what counts where the machine has more to do. Every server runs in a process of its own;
the client takes messages as bytes from the gRPC servers, and keeps the memory that they free as
ours does, and Flight's own client takes Flight's.
Every figure is the median of interleaved rounds; the page cache plays no part.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa

from benchmarks.flight_baseline import read_sizes, serve_flight
from headrace.bench.children import CHUNK_BYTES, processor_s, serving_ready_bytes
from headrace.bench.ready import METHOD
from headrace.client.options.settings import GROUP_BYTES
from headrace.client.wire.frames import keep_freed_memory
from headrace.server import ServerConfig, start_server
from headrace.storage import ShardWriter, commit_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb

READ = "/headrace.v1.ShardService/ReadBatches"
_SERVERS = ("bare", "parts", "ready", "gather")
_RNG = np.random.default_rng(7)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sample."""

    name: str
    batch_size: int
    sample_count: int
    table: Callable[[int], pa.Table]


@dataclass(frozen=True, slots=True)
class Running:
    """A server in a process of its own."""

    address: str
    pid: int


@dataclass(frozen=True, slots=True)
class _Rate:
    """Payload bytes a second: of time, and of processor time of server and client."""

    wall: float
    processor: float


def main() -> None:
    """Run all cases and print the table."""
    arguments = _arguments()
    keep_freed_memory()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"grpcio {grpc.__version__}, pyarrow {pa.__version__}, {arguments.rounds} rounds of "
        f"{arguments.seconds} s, load {os.getloadavg()[0]:.1f}"
    )
    rates = "".join(f"{name:>10}" for name in (*_SERVERS, "headrace"))
    ratios = "".join(f"{'/' + name:>8}" for name in (*_SERVERS, "cpu"))
    print(f"{'MB/s':<22}{'batch MiB':>10}{rates}{ratios}{'first ms':>10}")
    order = pb.OrderSpec()
    if arguments.shuffle_samples is not None:
        order.shuffle_samples = arguments.shuffle_samples
    for case in _CASES:
        if arguments.only in case.name:
            _run(
                case,
                order,
                rounds=arguments.rounds,
                seconds=arguments.seconds,
                group_bytes=arguments.group_kib << 10,
            )


def _run(case: Case, order: pb.OrderSpec, *, rounds: int, seconds: float, group_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        write(case, folder)
        request = pb.ReadBatchesRequest(
            dataset="bench",
            order=order,
            global_batch_size=case.batch_size,
            world_size=1,
            epoch_start=pb.EpochStart(),
            max_group_bytes=group_bytes,
        )
        ours = servers.enter_context(process(serve_headrace, folder))
        warm(ours.address, request, case.sample_count // case.batch_size)
        batch_bytes = _batch_bytes(ours.address, request)
        first_ms = statistics.median(_first_batch_ms(ours, request, batch_bytes) for _ in range(9))
        bare, parts = (
            Running(started.address, started.process.pid)
            for started in (
                servers.enter_context(serving_ready_bytes(batch_bytes, chunk_bytes=chunk_bytes))
                for chunk_bytes in (batch_bytes, CHUNK_BYTES)
            )
        )
        flight = servers.enter_context(process(serve_flight, (folder, case.batch_size)))
        wanted = request.SerializeToString()
        rates = [
            (
                _rate(bare, lambda: _grpc_sizes(bare, METHOD, b""), seconds),
                _rate(parts, lambda: _grpc_sizes(parts, METHOD, b""), seconds),
                _rate(flight, lambda: read_sizes(flight.address, "ready"), seconds),
                _rate(flight, lambda: read_sizes(flight.address, "gather"), seconds),
                _rate(ours, lambda: _grpc_sizes(ours, READ, wanted), seconds),
            )
            for _ in range(rounds)
        ]
    _print(case, batch_bytes, rates, first_ms=first_ms)


def _print(
    case: Case, batch_bytes: int, rates: Sequence[tuple[_Rate, ...]], *, first_ms: float
) -> None:
    medians = [
        statistics.median(rate.wall for rate in column) for column in zip(*rates, strict=True)
    ]
    ratios = [
        statistics.median(row[-1].wall / row[index].wall for row in rates)
        for index in range(len(_SERVERS))
    ]
    ratios.append(statistics.median(row[-1].processor / row[1].processor for row in rates))
    print(
        f"{case.name:<22}{batch_bytes / 2**20:>10.2f}"
        + "".join(f"{rate / 1e6:>10.0f}" for rate in medians)
        + "".join(f"{ratio:>8.2f}" for ratio in ratios)
        + f"{first_ms:>10.1f}",
        flush=True,
    )


def _rate(server: Running, sizes: Callable[[], Generator[int]], seconds: float) -> _Rate:
    """Return the bytes a second of one stream, its first tenth left out."""
    now = start = time.perf_counter() + seconds / 10
    spent = math.nan
    received = 0
    with closing(sizes()) as messages:
        for size in messages:
            now = time.perf_counter()
            if now < start:
                continue
            if math.isnan(spent):
                spent = _processor_s(server)
            received += size
            if now > start + seconds:
                break
        spent = _processor_s(server) - spent
    return _Rate(received / (now - start), received / spent)


def _processor_s(server: Running) -> float:
    """Return the processor time of a server and this process so far."""
    return processor_s(server.pid) + time.process_time()


def _grpc_sizes(server: Running, method: str, request: bytes) -> Generator[int]:
    with (
        open_channel(server.address) as channel,
        closing(grpc_messages(channel, method, request)) as messages,
    ):
        for message in messages:
            yield len(message)


def _first_batch_ms(server: Running, request: pb.ReadBatchesRequest, batch_bytes: int) -> float:
    """Return how long the messages of a first batch take; no payload is copied by protobuf."""
    wanted, received = request.SerializeToString(), 0
    with open_channel(server.address) as channel:
        grpc.channel_ready_future(channel).result(10)
        began = time.perf_counter()
        with closing(grpc_messages(channel, READ, wanted)) as messages:
            while received < batch_bytes:
                received += len(next(messages))
            return (time.perf_counter() - began) * 1000


def _batch_bytes(address: str, request: pb.ReadBatchesRequest) -> int:
    with (
        open_channel(address) as channel,
        closing(grpc_messages(channel, READ, _one_by_one(request))) as messages,
    ):
        return next_batch(messages)


def warm(address: str, request: pb.ReadBatchesRequest, batch_count: int) -> None:
    """Read so many batches, each by itself."""
    with (
        open_channel(address) as channel,
        closing(grpc_messages(channel, READ, _one_by_one(request))) as messages,
    ):
        for _ in range(batch_count):
            next_batch(messages)


def _one_by_one(request: pb.ReadBatchesRequest) -> bytes:
    """Return the same request for batches that come each by itself."""
    single = pb.ReadBatchesRequest()
    single.CopyFrom(request)
    single.max_group_bytes = 0
    return single.SerializeToString()


def next_batch(messages: Iterator[bytes]) -> int:
    """Read until a batch is whole that comes by itself; return the bytes of its payload."""
    wanted = received = 0
    for message in map(pb.ReadBatchesResponse.FromString, messages):
        if message.WhichOneof("event") == "batch":
            wanted = message.batch.payload_bytes
        received += len(message.payload)
        if wanted and received == wanted:
            return wanted
    raise RuntimeError("the stream ended without a batch")


def grpc_messages(
    channel: grpc.Channel, method: str, request: bytes
) -> Generator[bytes, None, None]:
    """Yield the messages of a stream as bytes."""
    call = channel.unary_stream(method, None, None)(request, timeout=300)
    try:
        yield from cast("Iterator[bytes]", call)
    finally:
        call.cancel()  # type: ignore[no-untyped-call]  # of the stubs


def open_channel(address: str) -> grpc.Channel:
    """Connect again, for messages of any size."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(address, options=options)


class process:  # noqa: N801 - a context manager, used like a function
    """Run a server in a process of its own; gives its address."""

    def __init__(self, target: Callable[..., None], argument: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=target, args=(argument, theirs), name="server")

    def __enter__(self) -> Running:
        self._child.start()
        if not self._pipe.poll(60):
            raise RuntimeError("the server did not start")
        assert self._child.pid is not None
        return Running(self._pipe.recv(), self._child.pid)

    def __exit__(self, *exc: object) -> None:
        self._pipe.send("end")
        self._child.join(30)


def serve_headrace(folder: str, pipe: Connection) -> None:
    """Serve the folder as ``bench`` until told to end."""
    config = ServerConfig(datasets={"bench": folder}, listen="127.0.0.1:0")
    with start_server(config) as server:
        pipe.send(server.address)
        pipe.recv()


def write(case: Case, folder: str) -> None:
    """Write the samples of a case."""
    store = open_store(folder)
    shards = []
    for shard in range(4):
        table = case.table(case.sample_count // 4)
        with ShardWriter(store, f"{shard}.arrow", schema=table.schema) as writer:
            for batch in table.to_batches():
                writer.append(batch)
            shards.append(writer.close())
    commit_dataset(store, table.schema, shards, mode="error")


def _field(name: str, arrow_type: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, arrow_type, nullable=False)


def _tensor_table(count: int) -> pa.Table:
    values = pa.array(_RNG.random(count * 40, dtype=np.float32))
    features = pa.FixedSizeListArray.from_arrays(values, 40)
    schema = pa.schema([_field("features", features.type), _field("label", pa.int64())])
    return pa.table([features, pa.array(np.arange(count))], schema=schema)


def _scalar_table(count: int) -> pa.Table:
    fields = [_field(f"f{index}", pa.float32()) for index in range(40)]
    columns = [pa.array(_RNG.random(count, dtype=np.float32)) for _ in fields]
    schema = pa.schema([*fields, _field("label", pa.int64())])
    return pa.table([*columns, pa.array(np.arange(count))], schema=schema)


def _images(count: int) -> pa.Table:
    values = pa.array([_RNG.bytes(65536) for _ in range(count)], pa.large_binary())
    schema = pa.schema([_field("image", pa.large_binary()), _field("label", pa.int32())])
    return pa.table([values, pa.array(np.arange(count, dtype=np.int32))], schema=schema)


def tokens(count: int) -> pa.Table:
    """Make samples of 2,048 tokens."""
    values = pa.array(_RNG.integers(0, 50_000, count * 2048, dtype=np.int32))
    tokens = pa.FixedSizeListArray.from_arrays(values, 2048)
    return pa.table([tokens], schema=pa.schema([_field("tokens", tokens.type)]))


def _text(count: int) -> pa.Table:
    lengths = _RNG.integers(200, 600, count)
    letters = _RNG.integers(97, 123, int(lengths.sum()), dtype=np.uint8).tobytes().decode()
    ends = np.cumsum(lengths).tolist()
    texts = [letters[end - size : end] for end, size in zip(ends, lengths.tolist(), strict=True)]
    return pa.table([pa.array(texts)], schema=pa.schema([_field("text", pa.string())]))


_CASES = (
    Case("float32[40] + label", 4096, 400_000, _tensor_table),
    Case("40 columns + label", 4096, 400_000, _scalar_table),
    Case("images of 64 KiB", 256, 3_000, _images),
    Case("int32[2048] tokens", 32, 24_000, tokens),
    Case("text of 400 B", 1024, 200_000, _text),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--shuffle-samples", type=int, help="samples that are shuffled together")
    parser.add_argument(
        "--group-kib",
        type=int,
        default=GROUP_BYTES >> 10,
        help="greatest message of several batches; 0 sends each by itself",
    )
    parser.add_argument("--only", default="", help="run the cases whose names contain this")
    return parser.parse_args()


if __name__ == "__main__":
    main()
