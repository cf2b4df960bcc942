"""Open streams that the processes of a host share: one of them reads, and the others take over.

Contract:

1. The events of a feed are those that its own stream would have: processes share only what they ask
   for in the same words, from a place that names the same token.
2. The first process to take a lock reads for all. If it ends, is killed, or is silent for
   `_SILENCES` times ``silence_s``, its peers open their streams again after their own last event,
   and the first of them reads.
3. A process that cannot share, or is at another place, reads alone, and says why. Every `_LOOK_S`
   it finds out whether it can share by now.
4. Every wait has an end: 2 s to meet, and the silence of the one that reads.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.client.feeds.feed import Event, Feed
from headrace.client.feeds.transport import Feeds, Landing, TransportState
from headrace.client.feeds.wait_times import HopClock
from headrace.client.options.transport import Transport
from headrace.client.servers.endpoints import Endpoint
from headrace.client.servers.runtime_folder import (
    Rendezvous,
    make_folder,
    rendezvous_of,
    sweep,
    try_lock,
)
from headrace.client.servers.status import error_of_reason
from headrace.client.sharing.hub import GATHER_S, Hub, peer_of
from headrace.client.sharing.pieces import Kind, Record, read, receive, taken
from headrace.client.wire.assembler import BatchEvent, EpochEndEvent, StreamAssembler
from headrace.client.wire.bounds import Bounds
from headrace.client.wire.buffers import BufferPool
from headrace.errors import HeadraceError, RebalanceError, StreamCorruptError
from headrace.order import decode_token
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)

_LOOK_S = 2.0
"""Seconds after which a process that reads alone tries to share again. Arbitrary."""
_COME_S = 10.0
"""Seconds for which the first batches are kept for those that have yet to come. Arbitrary; those
that train together do not get further without them."""
_ANSWER_S = 0.05
"""A hub that knows a place says so at once."""
_SILENCES = 2
"""The one that reads first hears itself that its server is silent."""
_LEAST_BYTES = 32 << 20
_MOST_HEAD_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Group:
    """With whom a process shares what it reads.

    Attributes:
        name: What all of them have in common that their requests do not say, such as the servers.
        left_out: Columns that this process takes none of.
        size: How many processes share, this one included.
        alone: Why it shares with nobody; empty if it does.
    """

    name: str = ""
    left_out: AbstractSet[str] = frozenset()
    size: int = 1
    alone: str = ""


def why_no_memory() -> str:
    """Return why processes of this machine cannot share memory; empty if they can."""
    names = ((os, "memfd_create"), (os, "eventfd"), (socket, "SO_PEERCRED"), (socket, "recv_fds"))
    if sys.platform == "linux" and all(hasattr(module, name) for module, name in names):
        return ""
    return "this platform has no memory that processes can share without a name (memfd)"


class HostFeeds:
    """Opens feeds that processes share: an `OpenFeed`.

    Attributes:
        why_alone: Why nothing is shared; empty if it may be.
        has_shared: Whether this process has shared a stream before.

    Args:
        options: How the one that reads does so.
        landing: Where payloads go, and where to note how they arrive.
        silence_s: Seconds without a sign of life after which a stream counts as dead.
        group: With whom to share.
    """

    def __init__(
        self, options: Transport, landing: Landing, *, silence_s: float, group: Group
    ) -> None:
        self._options, self._group, self._seat = options, group, 0
        self.why_alone = group.alone
        self.has_shared = False
        self.landing = replace(landing, takes_runs=False)
        self.silence_s = silence_s
        self.alone = Feeds(options, self.landing, silence_s=silence_s)
        self.budget_bytes = max(_LEAST_BYTES, 2 * options.prefetch_bytes)

    @contextmanager
    def __call__(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, *, clock: HopClock
    ) -> Iterator[HostFeed]:
        """Open a stream, or join one, and close it with all its resources at the end."""
        with ExitStack() as stack:
            feed = HostFeed(self, endpoint, request, clock=clock)
            stack.callback(feed.close)
            if not feed.why:
                try:
                    feed.connection = self._met(endpoint, request, stack)
                except (HeadraceError, OSError) as error:
                    feed.why = f"{error}"
            yield feed

    def own(self, event: Event | None) -> Event | None:
        """Return an event with the columns of this process."""
        left_out = self._group.left_out
        if not left_out or not isinstance(event, BatchEvent):
            return event
        columns = {name: view for name, view in event.columns.items() if name not in left_out}
        return BatchEvent(event.header, columns, event.payload)

    def leave_seat(self) -> None:
        """Meet elsewhere from now on: the one that reads is stuck, and holds its lock."""
        self._seat += 1

    def may_share(self, request: pb.ReadBatchesRequest) -> bool:
        """Return whether a stream would be shared from a place on; does not wait for long."""
        try:
            meeting = self._meeting(request)
            lock = try_lock(meeting.lock)
            if lock is not None:
                os.close(lock)
                return True
            connection = _connected(meeting)
            if connection is None:
                return False
            with connection:
                connection.settimeout(_ANSWER_S)
                connection.send(_place(request))
                record, fd = receive(connection)
                if fd >= 0:
                    os.close(fd)
                return record is not None and record.kind == Kind.START
        except (HeadraceError, OSError):
            return False

    def _meeting(self, request: pb.ReadBatchesRequest) -> Rendezvous:
        """Return where those meet that ask for the same, wherever they start."""
        same = pb.ReadBatchesRequest()
        same.CopyFrom(request)
        if same.epoch_count:
            same.epoch_count += _first_epoch(request)
        same.ClearField("start")
        text = blake2b(same.SerializeToString(deterministic=True)).hexdigest()
        return rendezvous_of(["share", self._group.name, text, str(self._seat)], os.environ)

    def _met(
        self, endpoint: Endpoint, request: pb.ReadBatchesRequest, stack: ExitStack
    ) -> socket.socket:
        """Return a connection to the one that reads, who may be this process from now on.

        Raises:
            HeadraceError: There is no folder to meet in.
            OSError: Nobody is there.
        """
        meeting, until = self._meeting(request), time.monotonic() + GATHER_S
        make_folder(meeting.folder)
        while True:
            lock = try_lock(meeting.lock)
            if lock is not None:
                self._lead(meeting, lock, endpoint, request, stack)
            connection = _connected(meeting)
            if connection is not None:
                connection.settimeout(_SILENCES * self.silence_s)
                connection.send(_place(request))
                return connection
            if time.monotonic() > until:
                raise TimeoutError(f"nobody answers at {meeting.lease}")
            time.sleep(GATHER_S / 200)

    def _lead(
        self,
        meeting: Rendezvous,
        lock: int,
        endpoint: Endpoint,
        request: pb.ReadBatchesRequest,
        stack: ExitStack,
    ) -> None:
        def opened(hub: Hub) -> contextlib.AbstractContextManager[Feed]:
            pool = BufferPool(idle_bytes=self._options.prefetch_bytes)
            landing = Landing(
                pool.take,
                None,
                _Told(hub),
                max_batch_bytes=self.landing.max_batch_bytes,
                connections=self.landing.connections,
            )
            feeds = Feeds(self._options, landing, silence_s=self.silence_s)
            return feeds(endpoint, request, clock=HopClock())

        # Of those that have shared, some may be dead.
        wait_s = GATHER_S if self.has_shared else _COME_S
        try:
            sweep(meeting)
            hub = Hub(
                meeting,
                lock,
                place=_place(request),
                budget_bytes=self.budget_bytes,
                awaited=(self._group.size, wait_s),
                last_epoch=_first_epoch(request) + request.epoch_count - 1
                if request.epoch_count
                else -1,
                open_feed=opened,
            )
        except BaseException:
            os.close(lock)
            raise
        stack.callback(hub.close)
        hub.start()


class _Told(TransportState):
    """How batches reach the hub, which hands on the start of its stream."""

    __slots__ = ("_hub",)

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub

    def begin(self, start: pb.StreamStart) -> None:
        self._hub.begin(start)


class HostFeed:
    """What a process gets of a stream that a hub reads, or that it reads alone.

    Attributes:
        connection: A connection to the hub, which knows the place; None to read alone.
        why: Why it reads alone.
    """

    def __init__(
        self,
        feeds: HostFeeds,
        endpoint: Endpoint,
        request: pb.ReadBatchesRequest,
        *,
        clock: HopClock,
    ) -> None:
        """Prepare to read.

        Args:
            feeds: What opens it.
            endpoint: The server to ask alone.
            request: What to read.
            clock: Where to note what is waited for.
        """
        self._feeds, self._landing = feeds, feeds.landing
        self._endpoint, self._request, self._clock = endpoint, request, clock
        self.connection: socket.socket | None = None
        self.why = feeds.why_alone
        self._pieces: dict[int, int] = {}
        self._guard, self._is_cancelled = threading.Lock(), False
        self._inner: Feed | None = None
        self._assembler = StreamAssembler(
            self._landing.allocate,
            bounds=Bounds.of(request, self._landing.max_batch_bytes),
            on_start=self._landing.transport.begin,
        )
        _OPEN.add(self)

    def events(self) -> Iterator[Event | None]:
        """Yield the stream's events; `Feed` holds the contract."""
        if self.connection is not None:
            yield from self._shared(self.connection)
        if self.why:
            yield from self._read_alone()

    def cancel(self) -> None:
        """End the stream for this process."""
        with self._guard:
            self._is_cancelled = True
            if self._inner is not None:
                self._inner.cancel()
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection and the pieces; also what a fork has copied of them."""
        if self.connection is not None:
            self.connection.close()
        for fd in self._pieces.values():
            os.close(fd)
        self._pieces.clear()

    def _shared(self, connection: socket.socket) -> Iterator[Event | None]:
        pid, transport = peer_of(connection)[0], self._landing.transport
        self._clock.enter("server")
        while (record := self._next(connection, pid)).kind != Kind.END:
            self._clock.enter("client")
            event: Event | None = None
            if record.kind == Kind.AWAY:
                self.why = f"process {pid}, which reads for this host, is at another place"
                return
            if record.kind == Kind.BROKEN:
                self.why = self._feeds.why_alone = "no memory can be shared, or no descriptors"
                return
            if record.kind == Kind.START:
                self._assembler.feed(self._read(record, np.empty(0, np.uint8)))
                self._feeds.has_shared = True
                transport.name, transport.shared_bytes = "host", self._feeds.budget_bytes // 2
                who = "this process" if pid == os.getpid() else f"process {pid}"
                transport.reason = f"shared: {who} reads for this host"
            elif record.kind != Kind.BEAT:
                event = self._event(record, pid)
                with contextlib.suppress(OSError):
                    connection.send(taken(record.number))
            yield event
            self._clock.enter("server")

    def _next(self, connection: socket.socket, pid: int) -> Record:
        """Wait for the next record.

        Raises:
            RebalanceError: The process that reads is gone, or silent; another one is to read.
        """
        while True:
            try:
                record, fd = receive(connection)
            except TimeoutError:
                self._feeds.leave_seat()
                seconds = _SILENCES * self._feeds.silence_s
                raise RebalanceError(
                    f"process {pid}, which reads for this host, has said nothing for "
                    f"{seconds:.0f} s; another one takes over"
                ) from None
            except OSError:
                record, fd = None, -1
            if record is None:
                raise RebalanceError(
                    f"process {pid}, which read for this host, reads no more; another one takes "
                    "over"
                )
            if fd >= 0:
                self._pieces[record.piece] = fd
            if record.kind != Kind.GONE:
                return record
            os.close(self._pieces.pop(record.piece))

    def _read(self, record: Record, payload: NDArray[np.uint8]) -> bytes:
        fd = self._pieces.get(record.piece)
        if fd is None or record.head_bytes > _MOST_HEAD_BYTES:
            raise StreamCorruptError(f"{record} of the process that reads makes no sense")
        return read(fd, record, payload)

    def _event(self, record: Record, pid: int) -> Event | None:
        size = record.payload_bytes
        if size > self._landing.max_batch_bytes:
            raise StreamCorruptError(
                f"process {pid} offers a batch of {size} bytes; expected at most "
                f"{self._landing.max_batch_bytes}"
            )
        payload = self._landing.allocate(size)
        head = self._read(record, payload)
        try:
            if record.kind == Kind.BATCH:
                self._landing.transport.batch_count += 1
                event = self._assembler.adopt(pb.BatchHeader.FromString(head), payload)
                return self._feeds.own(event)
            if record.kind == Kind.EPOCH_END:
                end = pb.EpochEnd.FromString(head)
                # One before the start was noticed already, by the token of the last batch.
                is_old = end.epoch < _first_epoch(self._request)
                return None if is_old else EpochEndEvent(end.epoch, end.resume_token)
            reason, message, metadata = json.loads(head)
        except (DecodeError, ValueError) as error:
            raise StreamCorruptError(f"{record} of process {pid} cannot be read") from error
        whose = "" if pid == os.getpid() else f"process {pid}, which reads for this host: "
        raise error_of_reason(reason, f"{whose}{message}", metadata)

    def _read_alone(self) -> Iterator[Event | None]:
        transport, look_at = self._landing.transport, time.monotonic() + _LOOK_S
        with self._feeds.alone(self._endpoint, self._request, clock=self._clock) as feed:
            with self._guard:
                self._inner = feed
                if self._is_cancelled:
                    return
            transport.reason = "; ".join(
                filter(None, (transport.reason, f"not shared: {self.why}"))
            )
            _log.info("%s", transport.reason)
            for event in feed.events():
                yield self._feeds.own(event)
                if isinstance(event, BatchEvent) and time.monotonic() >= look_at:
                    self._look(event.header.resume_token)
                    look_at = time.monotonic() + _LOOK_S

    def _look(self, token: bytes) -> None:
        """Leave a stream of this process alone if it can be shared.

        Raises:
            RebalanceError: It can.
        """
        request = pb.ReadBatchesRequest()
        request.CopyFrom(self._request)
        request.resume_token = token
        if not self._feeds.why_alone and self._feeds.may_share(request):
            raise RebalanceError("the stream can be shared with others of this host from here on")


def _place(request: pb.ReadBatchesRequest) -> bytes:
    """Return the name of the place where a request starts."""
    start = request.epoch_start
    return request.resume_token or f"{start.epoch},{start.position}".encode()


def _first_epoch(request: pb.ReadBatchesRequest) -> int:
    token = request.resume_token
    return decode_token(token).epoch if token else request.epoch_start.epoch


def _connected(meeting: Rendezvous) -> socket.socket | None:
    """Return a connection to the one that reads, if it is a process of this user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(1.0)
        connection.connect(str(meeting.lease))
        if peer_of(connection)[1] == os.geteuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _close_in_all() -> None:
    for feed in list(_OPEN):
        feed.close()
    _OPEN.clear()


_OPEN: weakref.WeakSet[HostFeed] = weakref.WeakSet()
os.register_at_fork(after_in_child=_close_in_all)
