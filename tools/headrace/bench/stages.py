"""Measure each stage from a store to a training loop, and all of them together."""

from __future__ import annotations

import importlib.util
import itertools
import statistics
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass

import grpc

from headrace.bench.children import Serving, serving, serving_ready_bytes
from headrace.bench.ready import METHOD
from headrace.bench.workloads import Workload
from headrace.client import (
    BatchEvent,
    BatchReader,
    BufferPool,
    Deadlines,
    Place,
    ReadOptions,
    RemoteDataset,
)
from headrace.order import OrderSpec
from headrace.storage import open_dataset, open_store
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as rpc

_MIB = 1 << 20
_ROUNDS = 3
_NAME = "bench"
_READ = "/headrace.v1.ShardService/ReadBatches"
_WHOLE_RUN_S = 600.0


@dataclass(frozen=True, slots=True)
class StageRates:
    """The payload rate of each stage in MiB/s, the median of three interleaved measurements.

    Attributes:
        workload: The kind of samples.
        batch_bytes: The payload of a batch in bytes.
        store: Reading shards, without processing them.
        decode: Reading, verifying and decoding blocks.
        gather: The work of the server except sending: order, lookup, gathering, hashing. This is
            the payload per second of processor time, less that of a bare server; 0 if the system
            does not report processor times.
        wire: Receiving and dropping bytes from a bare gRPC server in another process.
        server: Receiving and dropping shuffled batches from a real server with a warm cache.
        client: The same, verified and assembled by the client.
        loop: The same, as tensors in a training loop that does nothing.
        gpu: The same, on the GPU; 0 without a GPU.
        first_batch_ms: Milliseconds from opening to the first batch, with a warm cache.
    """

    workload: str
    batch_bytes: int
    store: float
    decode: float
    gather: float
    wire: float
    server: float
    client: float
    loop: float
    gpu: float
    first_batch_ms: float

    @property
    def bottleneck(self) -> str:
        """Return the stage that adds the most time to a batch in the loop, with a warm cache."""
        costs = self._costs()
        return max(costs, key=lambda stage: costs[stage])

    @property
    def bottleneck_share(self) -> float:
        """Return the share of the bottleneck in that time, in [0, 1]."""
        costs = {stage: max(0.0, cost) for stage, cost in self._costs().items()}
        return costs[self.bottleneck] / sum(costs.values())

    def _costs(self) -> dict[str, float]:
        """Return the time that each stage adds per MiB."""
        return {
            "wire": 1 / self.wire,
            "server": 1 / self.server - 1 / self.wire,
            "client": 1 / self.client - 1 / self.server,
            "loop": 1 / self.loop - 1 / self.client,
        }


def measure_stages(workload: Workload, url: str, *, raw_bytes: int, seconds: float) -> StageRates:
    """Write a dataset, serve it from a separate process, and measure.

    Args:
        workload: The kind of samples.
        url: An empty URL to write to.
        raw_bytes: The approximate raw size of the dataset in bytes.
        seconds: The duration of each measurement.

    Raises:
        ConfigurationError: The server did not start.
    """
    workload.write(url, raw_bytes=raw_bytes)
    with serving({_NAME: url}, stderr=subprocess.DEVNULL) as server:
        address = server.address
        payload = _first_payload(workload, address)
        _warm(workload, address)
        with serving_ready_bytes(payload) as ready:
            bare, busy = (
                ready.address,
                {"wire": _ProcessorTime(ready), "server": _ProcessorTime(server)},
            )
            runs: dict[str, Callable[[], Iterator[int]]] = {
                "store": lambda: _read_store(url),
                "decode": lambda: _decode(url),
                "wire": lambda: _messages(bare, METHOD, b""),
                "server": lambda: _server_messages(workload, address),
                "client": lambda: _client_batches(workload, address),
                "loop": lambda: _loop_batches(workload, address, device=None),
            }
            if _has_gpu():
                runs["gpu"] = lambda: _loop_batches(workload, address, device="cuda")
            rates: dict[str, list[float]] = {stage: [] for stage in runs}
            for _ in range(_ROUNDS):
                for stage, run in runs.items():
                    with busy.get(stage, nullcontext([])) as mib:
                        rates[stage].append(_rate(run(), seconds, mib))
        first_ms = statistics.median(_first_ms(workload, address) for _ in range(_ROUNDS))
    medians = {stage: statistics.median(found) for stage, found in rates.items()}
    return StageRates(
        workload=workload.name,
        batch_bytes=payload,
        first_batch_ms=first_ms,
        gather=_gather_rate(busy["wire"], busy["server"]),
        **{"gpu": 0.0, **medians},
    )


class _ProcessorTime:
    """Add up the processor time of a server, and the payload that it sends."""

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._began_s = 0.0
        self._mib: list[float] = []
        self.spent_s, self.sent_mib = 0.0, 0.0

    def __enter__(self) -> list[float]:
        self._began_s, self._mib = self._server.processor_s(), []
        return self._mib

    def __exit__(self, *exc: object) -> None:
        self.spent_s += self._server.processor_s() - self._began_s
        self.sent_mib += sum(self._mib)


def _gather_rate(bare: _ProcessorTime, server: _ProcessorTime) -> float:
    if not server.spent_s:
        return 0.0
    more_s = server.spent_s / server.sent_mib - bare.spent_s / bare.sent_mib
    return 1 / more_s if more_s > 0 else 0.0


def _rate(sizes: Iterator[int], seconds: float, mib: list[float]) -> float:
    """Return the MiB/s of a stream of sizes. The first item starts the clock.

    Args:
        sizes: The sizes of the received items in bytes.
        seconds: The duration of the measurement.
        mib: A list to which the MiB of all items are appended.
    """
    first = next(sizes)
    start, total = time.perf_counter(), 0
    for size in sizes:
        total += size
        if time.perf_counter() - start >= seconds:
            break
    mib.append((first + total) / _MIB)
    return max(total, 1) / _MIB / (time.perf_counter() - start)


def _read_store(url: str) -> Iterator[int]:
    with closing(open_store(url)) as store:
        names = [name for name in store.list("shards/") if name.endswith(".arrow")]
        yield 0
        for name in itertools.cycle(names):
            yield len(store.read(name))


def _decode(url: str) -> Iterator[int]:
    yield 0
    with open_dataset(url) as dataset:
        for block in itertools.cycle(range(dataset.block_count)):
            yield dataset.read_block(block).nbytes


def _messages(address: str, method: str, request: bytes) -> Iterator[int]:
    with grpc.insecure_channel(address) as channel:
        read = channel.unary_stream(method, request_serializer=None, response_deserializer=None)
        call = read(request, timeout=_WHOLE_RUN_S)
        try:
            for message in call:
                yield len(message)
        finally:
            call.cancel()  # type: ignore[no-untyped-call] # grpc-stubs lacks a type


def _server_messages(workload: Workload, address: str) -> Iterator[int]:
    request = _options(workload).to_request(epoch=0, position=0, token=None)
    return _messages(address, _READ, request.SerializeToString())


def _options(workload: Workload) -> ReadOptions:
    order = OrderSpec(seed=1, unit=workload.batch_size)
    return ReadOptions(_NAME, order, workload.batch_size)


def _client_batches(workload: Workload, address: str) -> Generator[int, None, None]:
    reader = BatchReader(
        [address],
        _options(workload),
        place=Place(),
        deadlines=Deadlines(),
        allocate=BufferPool(idle_bytes=64 * _MIB).take,
    )
    try:
        for event in reader.events():
            if isinstance(event, BatchEvent):
                yield event.header.payload_bytes
    finally:
        reader.close()


def _loop_batches(workload: Workload, address: str, *, device: str | None) -> Iterator[int]:
    dataset = RemoteDataset(address, _NAME, batch_size=workload.batch_size, seed=1, device=device)
    try:
        while True:
            for batch in dataset:
                yield workload.sample_bytes * batch.sample_count
    finally:
        dataset.close()


def _first_ms(workload: Workload, address: str) -> float:
    start = time.perf_counter()
    batches = _client_batches(workload, address)
    next(batches)
    taken = time.perf_counter() - start
    batches.close()
    return taken * 1e3


def _first_payload(workload: Workload, address: str) -> int:
    batches = _client_batches(workload, address)
    size = next(batches)
    batches.close()
    return size


def _warm(workload: Workload, address: str) -> None:
    request = _options(workload).to_request(epoch=0, position=0, token=None)
    request.epoch_count = 1
    with grpc.insecure_channel(address) as channel:
        for message in rpc.ShardServiceStub(channel).ReadBatches(request, timeout=_WHOLE_RUN_S):
            assert isinstance(message, pb.ReadBatchesResponse)


def _has_gpu() -> bool:
    if importlib.util.find_spec("torch") is None:
        return False
    import torch  # noqa: PLC0415 - heavy, and not needed by the thin client

    return torch.cuda.is_available()
