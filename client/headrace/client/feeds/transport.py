"""How batches arrive, and where they go: over gRPC, or by a transport that is installed."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.client.feeds.feed import Feed, OpenFeed
from headrace.client.feeds.grpc_feed import Connections, WireFeeds
from headrace.client.feeds.shortage import CacheShortage
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.settings import DEFAULT_MAX_BATCH_BYTES
from headrace.client.options.transport import TRANSPORTS, Transport, transport_names
from headrace.client.servers.endpoints import Endpoint
from headrace.client.wire.assembler import Allocate, Keep
from headrace.client.wire.frames import memory_of
from headrace.errors import NoTransportError
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

Adopt = Callable[[NDArray[np.uint8]], None]
"""Takes memory that a server writes payloads to, ``(shared_bytes,) uint8``."""


@dataclass(slots=True)
class TransportState:
    """How batches arrive at the moment, and why; written by the reading thread.

    Attributes:
        name: The name of the transport; empty before the first stream.
        reason: Why it is gRPC, or not quite what was requested; otherwise empty.
        shared_bytes: Size of the memory that a server writes batches to; 0 without such memory.
        batch_count: Batches that came in another way than gRPC's messages, over all streams.
        cache_shortage: How the server's cache was too small when the stream began; None if not.
        columns: What its batches have; empty before the first stream.
    """

    name: str = ""
    reason: str = ""
    shared_bytes: int = 0
    batch_count: int = 0
    cache_shortage: CacheShortage | None = None
    columns: tuple[pb.Column, ...] = ()

    def begin(self, start: pb.StreamStart) -> None:
        """Take the first message of a stream, and log a shortage that is new."""
        self.columns = tuple(each for each in start.columns if each.name != SAMPLE_ID_COLUMN)
        before, self.cache_shortage = self.cache_shortage, None
        if start.HasField("cache_shortage"):
            told = start.cache_shortage
            self.cache_shortage = CacheShortage(told.job_bytes, told.part_bytes)
            if self.cache_shortage != before:
                _log.warning("%s", self.cache_shortage)

    def is_shared(self) -> bool:
        """Return whether the server writes batches ahead into memory that this process sees."""
        return self.shared_bytes > 0

    def ready_bytes(self, wanted: int) -> int:
        """Return how many bytes may wait: at most half of what is shared with a server."""
        return min(wanted, self.shared_bytes // 2) if self.shared_bytes else wanted


@dataclass(frozen=True, slots=True)
class Landing:
    """Where the payloads of a reader go, and where its feeds report.

    Attributes:
        allocate: Returns memory for payloads that come in messages.
        adopt: Takes memory that a server writes payloads to.
        transport: Records how batches arrive.
        keep: Makes a message memory of its batch; None where payloads must go to ``allocate``.
        takes_runs: Whether batches in shared memory may come together (`BatchEvent.ahead`).
        max_batch_bytes: Most payload bytes of a batch, whatever a server says.
        connections: Where the connections of streams come from.
    """

    allocate: Allocate
    adopt: Adopt | None
    transport: TransportState
    keep: Keep | None = memory_of
    takes_runs: bool = False
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    connections: Connections = field(default_factory=Connections)


class Feeds:
    """Opens feeds: an `OpenFeed`.

    Args:
        options: How batches are to get here.
        landing: Where payloads go, and where to note how they arrive.
        silence_s: Seconds without a sign of life after which a stream counts as dead.
    """

    def __init__(self, options: Transport, landing: Landing, *, silence_s: float) -> None:
        self._kind, self._transport = options.kind, landing.transport
        self._open = _opened_by(options, landing, silence_s=silence_s)
        self._wire = WireFeeds(
            landing.allocate,
            silence_s,
            landing.keep,
            landing.max_batch_bytes,
            landing.transport.begin,
            landing.connections,
        )

    @contextmanager
    def __call__(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[Feed]:
        """Open a stream, and close it with all its resources at the end.

        Raises:
            NoTransportError: A transport is required and not available.
        """
        with ExitStack() as stack:
            yield self._opened(endpoint, request, clock, stack)

    def _opened(
        self,
        endpoint: Endpoint,
        request: pb.ReadBatchesRequest,
        clock: HopClock,
        stack: ExitStack,
    ) -> Feed:
        reasons = []
        for open_feed in self._open:
            try:
                return stack.enter_context(open_feed(endpoint, request, clock=clock))
            except NoTransportError as refusal:
                if self._kind != "auto":
                    raise NoTransportError(
                        f"Transport({self._kind!r}) was requested, but is not available from "
                        f"{endpoint.address}: {refusal.message}",
                        target=endpoint.address,
                    ) from refusal
                reasons.append(refusal.message)
        self._transport.name, self._transport.shared_bytes = "grpc", 0
        self._transport.reason = "; ".join(reasons) or "Transport('grpc') was requested"
        return stack.enter_context(self._wire(endpoint, request, clock=clock))


def prepare(options: Transport) -> None:
    """Import what the first stream takes, which its first batch would else wait for: some 20 ms."""
    _plugs(options)
    # gRPC imports this for the first channel; a version that has it elsewhere imports it then.
    with suppress(ImportError):
        import_module("grpc._channel")


def _opened_by(options: Transport, landing: Landing, *, silence_s: float) -> list[OpenFeed]:
    """Return what opens feeds by the transports that the options ask for, besides gRPC."""
    return [plug(options, landing, silence_s=silence_s).open for plug in _plugs(options)]


def _plugs(options: Transport) -> list[Any]:
    """Return the plugs of the transports that the options ask for, besides gRPC."""
    if options.kind == "auto":
        return [plug for plug in map(_plug, transport_names()) if plug.is_tried(options)]
    return [_plug(options.kind)] if options.kind != "grpc" else []


@functools.cache
def _plug(name: str) -> Any:
    """Return a `headrace.client.feeds.transport_plugs.TransportPlug`."""
    return import_module(f"{TRANSPORTS}.{name}").Plug
