"""Measure the server against the wire: batches out of a warm cache, against ready bytes.

``python tests/benchmarks/bench_server.py`` prints, for each kind of sample, the payload bytes a
second of one stream of shuffled batches, the same of a bare gRPC server that yields one ready
``bytes`` of the same size over and over, and the ratio: the ceiling is 1. Both servers run in
processes of their own and the client takes messages as bytes from both, so only the servers
differ. Every figure is the median of interleaved rounds; the page cache plays no part.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import grpc
import numpy as np
import pyarrow as pa

from headrace.server import ServerConfig, start_server
from headrace.server._listen import GRPC_OPTIONS
from headrace.storage import ShardWriter, commit_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb

_READ = "/headrace.v1.ShardService/ReadBatches"
_BARE = "/bench.Bare/Read"
_CHUNK_BYTES = 2 * 1024 * 1024
_RNG = np.random.default_rng(7)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of sample."""

    name: str
    batch_size: int
    sample_count: int
    table: Callable[[int], pa.Table]


def main() -> None:
    """Run all cases and print the table."""
    arguments = _arguments()
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"grpcio {grpc.__version__}, {arguments.rounds} rounds of {arguments.seconds} s"
    )
    heads = f"{'case':<28}{'batch MiB':>10}{'bare MB/s':>11}{'headrace':>10}{'ratio':>7}"
    print(f"{heads}{'first ms':>10}")
    order = pb.OrderSpec()
    if arguments.window is not None:
        order.window = arguments.window
    for case in _CASES:
        if arguments.only in case.name:
            _run(case, order, rounds=arguments.rounds, seconds=arguments.seconds)


def _run(case: Case, order: pb.OrderSpec, *, rounds: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _write(case, folder)
        request = pb.ReadBatchesRequest(
            dataset="bench",
            order=order,
            global_batch_size=case.batch_size,
            world_size=1,
            epoch_start=pb.EpochStart(),
        )
        with _process(_serve_headrace, folder) as ours:
            _warm(ours, request, case.sample_count // case.batch_size)
            first_ms = statistics.median(_first_batch_ms(ours, request) for _ in range(5))
            batch_bytes = _batch_bytes(ours, request)
            with _process(_serve_bare, batch_bytes) as bare:
                rates = [
                    (
                        _rate(bare, _BARE, b"", seconds),
                        _rate(ours, _READ, request.SerializeToString(), seconds),
                    )
                    for _ in range(rounds)
                ]
    bare_rate = statistics.median(rate for rate, _ in rates)
    our_rate = statistics.median(rate for _, rate in rates)
    ratio = statistics.median(our / bare for bare, our in rates)
    print(
        f"{case.name:<28}{batch_bytes / 2**20:>10.2f}{bare_rate / 1e6:>11.0f}"
        f"{our_rate / 1e6:>10.0f}{ratio:>7.2f}{first_ms:>10.1f}",
        flush=True,
    )


def _rate(address: str, method: str, request: bytes, seconds: float) -> float:
    """Return the bytes a second of one stream, its first tenth left out."""
    now = begin = time.perf_counter() + seconds / 10
    received = 0
    with _channel(address) as channel, closing(_messages(channel, method, request)) as messages:
        for message in messages:
            now = time.perf_counter()
            if now < begin:
                continue
            received += len(message)
            if now > begin + seconds:
                break
    return received / (now - begin)


def _first_batch_ms(address: str, request: pb.ReadBatchesRequest) -> float:
    with _channel(address) as channel:
        grpc.channel_ready_future(channel).result(10)
        began = time.perf_counter()
        with closing(_messages(channel, _READ, request.SerializeToString())) as messages:
            _next_batch(messages)
            return (time.perf_counter() - began) * 1000


def _batch_bytes(address: str, request: pb.ReadBatchesRequest) -> int:
    with (
        _channel(address) as channel,
        closing(_messages(channel, _READ, request.SerializeToString())) as messages,
    ):
        return _next_batch(messages)


def _warm(address: str, request: pb.ReadBatchesRequest, batch_count: int) -> None:
    with (
        _channel(address) as channel,
        closing(_messages(channel, _READ, request.SerializeToString())) as messages,
    ):
        for _ in range(batch_count):
            _next_batch(messages)


def _next_batch(messages: Iterator[bytes]) -> int:
    wanted = received = 0
    for message in map(pb.ReadBatchesResponse.FromString, messages):
        if message.WhichOneof("event") == "batch":
            wanted = message.batch.payload_bytes
        received += len(message.payload)
        if wanted and received == wanted:
            return wanted
    raise RuntimeError("the stream ended without a batch")


def _messages(channel: grpc.Channel, method: str, request: bytes) -> Generator[bytes, None, None]:
    call = channel.unary_stream(method, None, None)(request, timeout=300)
    try:
        yield from cast("Iterator[bytes]", call)
    finally:
        call.cancel()  # type: ignore[no-untyped-call]  # of the stubs


def _channel(address: str) -> grpc.Channel:
    return grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


class _process:  # noqa: N801 - a context manager, used like a function
    """Run a server in a process of its own; gives its address."""

    def __init__(self, target: Callable[..., None], argument: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=target, args=(argument, theirs), name="server")

    def __enter__(self) -> str:
        self._child.start()
        if not self._pipe.poll(60):
            raise RuntimeError("the server did not start")
        address: str = self._pipe.recv()
        return address

    def __exit__(self, *exc: object) -> None:
        self._pipe.send("end")
        self._child.join(30)


def _serve_headrace(folder: str, pipe: Connection) -> None:
    config = ServerConfig(datasets={"bench": folder}, listen="127.0.0.1:0")
    with start_server(config) as server:
        pipe.send(server.address)
        pipe.recv()


def _serve_bare(batch_bytes: int, pipe: Connection) -> None:
    ready = [
        bytes(min(_CHUNK_BYTES, batch_bytes - begin))
        for begin in range(0, batch_bytes, _CHUNK_BYTES)
    ]

    def read(_request: bytes, _context: grpc.ServicerContext) -> Iterator[bytes]:
        while True:
            yield from ready

    server = grpc.server(ThreadPoolExecutor(4), options=GRPC_OPTIONS)
    service, method = _BARE[1:].split("/")
    handlers = {method: grpc.unary_stream_rpc_method_handler(read)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    pipe.send(f"127.0.0.1:{port}")
    pipe.recv()
    server.stop(0).wait(10)


def _write(case: Case, folder: str) -> None:
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


def _tokens(count: int) -> pa.Table:
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
    Case("int32[2048] tokens", 32, 24_000, _tokens),
    Case("text of 400 B", 1024, 200_000, _text),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--window", type=int, help="shuffle window in samples")
    parser.add_argument("--only", default="", help="run the cases whose names contain this")
    return parser.parse_args()


if __name__ == "__main__":
    main()
