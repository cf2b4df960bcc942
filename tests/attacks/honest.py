"""The honest second caller: what a probe, a person and a trainer do, over and over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headrace.v1 import shard_service_pb2 as pb
from headrace.v1 import shard_service_pb2_grpc as pb_grpc

# Longer than anything that an honest caller may have to wait for.
_TIMEOUT_S = 20.0
_BATCHES = 8
# New clients must get in too.
_TURNS_A_CONNECTION = 16

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Seen:
    """What the honest caller has seen.

    Attributes:
        turns: A turn is a health check, a list of datasets, and a stream of a few batches.
        seconds: In which it took them.
        longest_s: The longest that one call, or one message of a stream, took to come.
        refusals: How often it was told to wait, where it may be.
        losses: How often its connection was lost, where it may be.
        errors: Whatever else failed, and how often.
    """

    turns: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    refusals: int = 0
    losses: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Turns a second."""
        return self.turns / self.seconds if self.seconds else 0.0

    def add(self, other: Seen) -> None:
        """Take in what was seen at another time."""
        self.turns += other.turns
        self.seconds += other.seconds
        self.longest_s = max(self.longest_s, other.longest_s)
        self.refusals += other.refusals
        self.losses += other.losses
        self.errors.update(other.errors)

    def __str__(self) -> str:
        refused = f", told to wait {self.refusals} times" if self.refusals else ""
        lost = f", lost {self.losses} connections" if self.losses else ""
        return (
            f"{self.rate:.1f} turns/s, longest wait {self.longest_s * 1000:.0f} ms, "
            f"{self.errors.total()} errors{refused}{lost}"
        )


class Honest:
    """Calls one server.

    Args:
        address: Of the server, or of the proxy before it.
        health: Where the server answers probes.
        token: Its own.
        dataset: What it reads.
    """

    def __init__(self, address: str, health: str, token: str, dataset: str) -> None:
        self._address = address
        self._health = health
        self._metadata = (("authorization", f"Bearer {token}"),)
        self._dataset = dataset
        self.seen = Seen()
        self.may_be_refused = False
        self.may_lose_server = False
        self.may_be_cut = False

    def turns(self) -> Iterator[None]:
        """Take turns for ever; yields after each."""
        while True:
            with (
                self._connection(self._address) as channel,
                self._connection(self._health) as probe,
            ):
                for _ in range(_TURNS_A_CONNECTION):
                    self._turn(channel, probe)
                    yield

    def _turn(self, channel: grpc.Channel, probe: grpc.Channel) -> None:
        try:
            self._waited(lambda: self._check(probe))
            self._waited(lambda: self._list(channel))
            self._read(channel)
        except grpc.RpcError as error:
            self._failed(error)
        else:
            self.seen.turns += 1

    def _check(self, channel: grpc.Channel) -> None:
        check = health_pb2_grpc.HealthStub(channel).Check
        answer = check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
        if answer.status != health_pb2.HealthCheckResponse.SERVING:
            self.seen.errors[f"health {answer.status}"] += 1

    def _list(self, channel: grpc.Channel) -> None:
        ask = pb_grpc.ShardServiceStub(channel).ListDatasets
        # A client that cannot get in tries again; how long that takes is its longest wait.
        request = pb.ListDatasetsRequest()
        ask(request, timeout=_TIMEOUT_S, metadata=self._metadata, wait_for_ready=True)

    def _read(self, channel: grpc.Channel) -> None:
        request = pb.ReadBatchesRequest(
            dataset=self._dataset,
            global_batch_size=100,
            world_size=1,
            epoch_start=pb.EpochStart(),
        )
        read = pb_grpc.ShardServiceStub(channel).ReadBatches
        call: Any = read(request, timeout=_TIMEOUT_S, metadata=self._metadata)
        stream: Iterator[pb.ReadBatchesResponse] = call
        try:
            batches = 0
            while batches < _BATCHES:
                message = self._waited(lambda: next(stream))
                batches += message.HasField("batch")
        finally:
            call.cancel()

    def _waited(self, ask: Callable[[], _Answer]) -> _Answer:
        began = time.monotonic()
        try:
            return ask()
        finally:
            self.seen.longest_s = max(self.seen.longest_s, time.monotonic() - began)

    def _failed(self, error: grpc.RpcError) -> None:
        wait_s = told_to_wait_s(error)
        if self.may_be_refused and wait_s is not None:
            self.seen.refusals += 1
            time.sleep(wait_s)
        elif (self.may_lose_server and error.code() is grpc.StatusCode.UNAVAILABLE) or (
            self.may_be_cut and error.code() is grpc.StatusCode.CANCELLED
        ):
            self.seen.losses += 1
        else:
            self.seen.errors[f"{error.code()}: {error.details()}"] += 1

    @contextmanager
    def _connection(self, address: str) -> Iterator[grpc.Channel]:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(address, options=options) as channel:
            yield channel


def work(address: str, health: str, token: str, dataset: str, orders: Connection) -> None:
    """Take turns when told to, and say what was seen; the end of the connection is the end."""
    honest = Honest(address, health, token, dataset)
    turns = honest.turns()
    next(turns)
    orders.send("ready")
    while True:
        try:
            order = orders.recv()
        except EOFError:
            return
        honest.seen, honest.may_be_refused = Seen(), order["may_be_refused"]
        honest.may_lose_server = order["may_lose_server"]
        honest.may_be_cut = order["may_be_cut"]
        began = time.monotonic()
        # At least once: what ends before this process has a processor would say nothing.
        next(turns)
        while not orders.poll():
            next(turns)
        orders.recv()
        honest.seen.seconds = time.monotonic() - began
        orders.send(honest.seen)


def told_to_wait_s(error: grpc.RpcError) -> float | None:
    """Return for how long a refused caller is to wait; None if it is not told so."""
    if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        return None
    for key, value in cast("Sequence[tuple[str, bytes]]", error.trailing_metadata() or ()):
        if key == "grpc-status-details-bin":
            for packed in status_pb2.Status.FromString(value).details:
                found = error_details_pb2.RetryInfo()
                if packed.Unpack(found):
                    return float(found.retry_delay.ToMilliseconds()) / 1000
    return None
