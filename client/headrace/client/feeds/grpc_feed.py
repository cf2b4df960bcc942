"""The feed over gRPC alone: it turns messages into batches."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import grpc

from headrace.client.feeds.feed import Event
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.settings import (
    DEFAULT_MAX_BATCH_BYTES,
    DEFAULT_PREFETCH_BYTES,
    GROUP_BYTES,
)
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.failed_hop import silent_hop
from headrace.client.servers.status import error_from_call
from headrace.client.wire.assembler import Allocate, Keep, Pieces, StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.client.wire.frames import (
    HEARTBEAT,
    MessageFrame,
    keep_freed_memory,
    memory_of,
    read_frame,
    read_frames,
    read_heartbeat,
)
from headrace.errors import HeadraceError, ServerUnreachableError
from headrace.v1 import shard_service_pb2 as pb

_READY_S, _LOOK_S = 0.1, 0.0005
"""A connection that is up is found at once; one that is not is no quicker than a new one."""
_LEAST_WINDOW = 1 << 16
"""HTTP/2's own."""
_DOUBT_S = 1.0
"""Of silence, while the loop waits, after which to find out, once, who keeps silent."""


class Connections:
    """The connections of one dataset's streams, one after the other. Safe for several threads.

    gRPC shares a connection among channels of one name that are open at a time, so one that is
    opened before another is closed keeps its connection.

    Args:
        prefetch_bytes: Most bytes to hold ready; see `window`.
    """

    def __init__(self, prefetch_bytes: int = DEFAULT_PREFETCH_BYTES) -> None:
        self._window = window(prefetch_bytes)
        self._lock = threading.Lock()
        self._newest: tuple[Endpoint, str] | None = None
        self._kept: tuple[Endpoint, grpc.Channel] | None = None

    def open(self, endpoint: Endpoint) -> grpc.Channel:
        """Return a channel for a stream, which the caller closes: a kept one if it leads there."""
        with self._lock:
            kept, self._kept = self._kept, None
            if kept is not None and kept[0] == endpoint:
                return kept[1]
            name = uuid.uuid4().hex
            self._newest = endpoint, name
        if kept is not None:
            kept[1].close()
        return self._opened(endpoint, name)

    def _opened(self, endpoint: Endpoint, name: str) -> grpc.Channel:
        return endpoint.access.open_channel(endpoint.address, connection=name, window=self._window)

    def keep(self) -> None:
        """Keep the connection of the newest stream for the next one, if it is up."""
        self.drop()
        if self._newest is None:
            return
        endpoint, name = self._newest
        channel = self._opened(endpoint, name)
        if not _is_up(channel):
            channel.close()
            return
        with self._lock:
            self._kept = endpoint, channel

    def drop(self) -> None:
        """Close the connection that is kept, if there is one."""
        with self._lock:
            kept, self._kept = self._kept, None
        if kept is not None:
            kept[1].close()


def _is_up(channel: grpc.Channel) -> bool:
    """Return whether a channel has a connection: one that others hold it has at once.

    A call would ask the same of a server that may be busy, for 30 ms (measured); and to subscribe
    takes a thread of gRPC, for whose end `close` would wait.
    """
    try:
        state = channel._channel.check_connectivity_state  # type: ignore[attr-defined] # noqa: SLF001
    except AttributeError:
        # A gRPC that has this elsewhere: the next stream opens a connection of its own.
        return False
    until = time.monotonic() + _READY_S
    while state(True) != grpc.ChannelConnectivity.READY.value[0]:
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)
    return True


def window(prefetch_bytes: int) -> int:
    """Return how many bytes gRPC may let come before they are asked for; 0 if it chooses.

    gRPC lets megabytes come. Who wants to hold less ready also wants less to come meanwhile. Up to
    twice as much can be under way: gRPC promises more when a reader begins to wait, and again when
    it has what it waited for. So that is half, and the other half may be ready.

    Args:
        prefetch_bytes: Most bytes to hold ready.
    """
    return 0 if prefetch_bytes >= 2 * GROUP_BYTES else max(_LEAST_WINDOW, prefetch_bytes // 4)


@dataclass(frozen=True, slots=True)
class WireFeeds:
    """Opens feeds over gRPC: an `OpenFeed`.

    Attributes:
        allocate: Where payloads go.
        silence_s: Seconds without a message after which a stream counts as dead.
        keep: Makes a message memory of its batch; None to copy all payloads.
        max_batch_bytes: Most payload bytes of a batch, whatever a server says.
        on_start: Takes the first message of each stream; None to ignore it.
        connections: Where connections come from.
    """

    allocate: Allocate
    silence_s: float
    keep: Keep | None = memory_of
    max_batch_bytes: int = DEFAULT_MAX_BATCH_BYTES
    on_start: Callable[[pb.StreamStart], None] | None = None
    connections: Connections = field(default_factory=Connections)

    @contextmanager
    def __call__(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[WireFeed]:
        """Open a stream on a connection of its own, and close both at the end."""
        keep_freed_memory()
        with self.connections.open(endpoint) as channel:
            call = encoded_messages(channel, "ReadBatches", request, endpoint.access.metadata())
            bounds = Bounds.of(request, self.max_batch_bytes)
            assembler = StreamAssembler(
                self.allocate, keep=self.keep, bounds=bounds, on_start=self.on_start
            )
            feed = WireFeed(channel, call, assembler, clock, target=endpoint.address)
            with watched(feed, silence_s=self.silence_s):
                yield feed


class WireFeed:
    """One `ReadBatches` call."""

    def __init__(
        self,
        channel: grpc.Channel,
        call: grpc.CallIterator[bytes],
        assembler: StreamAssembler,
        clock: HopClock,
        *,
        target: str,
    ) -> None:
        """Take over a call that was just started.

        Args:
            channel: The connection, used by this call alone.
            call: The responses.
            assembler: Makes batches of them.
            clock: Where the feed notes what it waits for.
            target: The address, for messages.
        """
        self._channel = channel
        self._responses: Iterator[bytes] = iter(call)
        self._assembler = assembler
        self._clock = clock
        self.target = target
        self._waiting_since: float | None = None
        self._silent_for_s: float | None = None
        self._doubted: float | None = None

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        while (message := self.next_message()) is not None:
            yield from self.take_all(message)

    def take_all(self, message: bytes) -> Iterator[Event | None]:
        """Yield what a message completes, or None, for each message that it holds."""
        for frame in read_frames(message):
            event = self._take(frame)
            yield event
            if event is not None:
                self._clock.await_answer()

    def receive(self, frame: MessageFrame, pieces: Pieces) -> Event | None:
        """Take a message whose payload is still to be received; see `StreamAssembler.receive`."""
        self._clock.await_answer()
        return self._assembler.receive(frame, pieces)

    def next_message(self) -> bytes | None:
        """Wait for the next message; None at the end.

        Raises:
            HeadraceError: The call failed, or its server was silent for too long.
        """
        self._waiting_since = time.monotonic()
        try:
            return next(self._responses, None)
        except grpc.RpcError as failure:
            # The call itself is the exception. Its traceback would keep all frames up to the
            # reader's, and so the last batch, until garbage is collected.
            raise self._error(failure) from failure.with_traceback(None)
        finally:
            # Time between two waits of the caller is not silence.
            self._waiting_since = None

    def cancel(self) -> None:
        """End the call."""
        self._channel.close()

    def close(self) -> None:
        """End the call and let gRPC free it; for the reading thread."""
        end_call(self._channel, self._responses)

    def end_if_silent(self, silence_s: float) -> bool:
        """Cancel the call if nothing came for ``silence_s``; for another thread."""
        since = self._waiting_since
        silent_s = 0.0 if since is None else time.monotonic() - since
        if silent_s >= _DOUBT_S and self._clock.is_awaited and since != self._doubted:
            self._doubted = since
            self._clock.suspect(silent_hop(self.target))
        if silent_s < silence_s:
            return False
        self._silent_for_s = silence_s
        self._clock.fail_silent()
        self.cancel()
        return True

    def take(self, message: bytes) -> Event | None:
        """Return the event that a message completes, if any; the message holds no others."""
        return self._take(read_frame(message))

    def _take(self, frame: MessageFrame) -> Event | None:
        if frame.kind == HEARTBEAT:
            said = read_heartbeat(frame)
            self._clock.account(
                store=said.store_ms / 1000,
                decode=said.decode_ms / 1000,
                server=said.server_ms / 1000,
            )
            return None
        self._clock.enter("client")
        event = self._assembler.take(frame)
        if event is None:
            self._clock.await_answer()
        return event

    def _error(self, failure: grpc.RpcError) -> HeadraceError:
        if self._silent_for_s is None:
            return error_from_call(failure, target=self.target)
        return ServerUnreachableError(
            f"{self.target} sent nothing for {self._silent_for_s:.0f} s, not even a heartbeat; the "
            "server, or the network to it, is stuck",
            target=self.target,
        )


def encoded_messages(
    channel: grpc.Channel,
    method: Literal["ReadBatches", "AttachTransport"],
    request: pb.ReadBatchesRequest | pb.AttachTransportRequest,
    metadata: tuple[tuple[str, str], ...],
) -> grpc.CallIterator[bytes]:
    """Start a call whose responses stay encoded, so that protobuf copies no payload."""
    start = channel.unary_stream(
        f"/headrace.v1.ShardService/{method}",
        request_serializer=type(request).SerializeToString,
        response_deserializer=_as_it_is,
    )
    return start(request, metadata=metadata)


def end_call(channel: grpc.Channel, responses: Iterator[bytes]) -> None:
    """End a call whose events arrive in this thread, and free its connection and memory.

    gRPC frees such a call when its last event has been taken, but takes no more events after
    `cancel`: each cancelled stream would leave 0.3 MiB and a connection behind.

    Args:
        channel: The channel, used by this call alone.
        responses: The responses of the call; those under way are dropped.
    """
    channel.close()
    try:
        for _ in responses:
            pass
    except grpc.RpcError as ended:
        # The exception is the call: its traceback, and that of its context, would keep all frames
        # up to the reader's, and so the last batch.
        ended.__traceback__ = ended.__context__ = None


def _as_it_is(message: bytes) -> bytes:
    return message


@contextmanager
def watched(feed: WireFeed, *, silence_s: float) -> Iterator[None]:
    """Cancel a feed at the end, or when its server has been silent for too long."""
    done, is_open = threading.Event(), True

    def watch() -> None:
        while not done.wait(min(silence_s / 4, _DOUBT_S)) and is_open:
            if feed.end_if_silent(silence_s):
                return

    watchdog = threading.Thread(target=watch, name="headrace-silence-watchdog", daemon=True)
    try:
        watchdog.start()
        yield
    finally:
        # A plain store: Ctrl-C may interrupt a call, and what follows would not run.
        is_open = False
        done.set()
        feed.close()
        with contextlib.suppress(RuntimeError):  # its start was interrupted
            watchdog.join(timeout=5)
