"""The running stream of a dataset, opened on demand in the process that needs it."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.client.api.stats import ClientStats
from headrace.client.batch.transformed import Transformation, TransformingReader
from headrace.client.feeds.blame import culprit_of
from headrace.client.feeds.feed import Event
from headrace.client.feeds.grpc_feed import Connections, window
from headrace.client.feeds.transport import Feeds, Landing, TransportState, prepare
from headrace.client.options.read_request import ReadOptions
from headrace.client.options.settings import GROUP_BYTES
from headrace.client.options.transport import Transport
from headrace.client.reader.prefetch import Prefetcher, Reader
from headrace.client.reader.reader import BatchReader, Place
from headrace.client.servers.endpoints import Endpoints
from headrace.client.sharing.host_feeds import Group, HostFeeds
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.buffers import BufferPool
from headrace.v1 import shard_service_pb2 as pb


class Mover(Protocol):
    """Buffers that payloads pass on their way to a device."""

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer to receive ``size`` bytes into."""

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Note memory that a server writes payloads to."""

    def moving(self, reader: Reader) -> Reader:
        """Return a reader of the same batches, on the device."""


class LiveStream:
    """Owns the prefetcher of one process; threads and connections never move to another."""

    def __init__(
        self,
        transport: Transport,
        transformation: Transformation | None = None,
        make_mover: Callable[[], Mover] | None = None,
    ) -> None:
        """Prepare; nothing runs yet.

        Args:
            transport: How many payload bytes to hold ready, at most; as many may idle for reuse.
            transformation: Called with each batch in the thread that reads ahead. None to hand
                batches over as they are.
            make_mover: Makes what moves batches to a device; called once per process. None to leave
                batches in the memory they are received in. Not with a transformation.
        """
        prepare(transport)
        self._wanted, self._transformation, self._make_mover = transport, transformation, make_mover
        self._process = _process
        self._ready: deque[BatchEvent] = deque()
        self._pool = BufferPool(idle_bytes=transport.prefetch_bytes)
        self._mover: Mover | None = None
        self._transport = TransportState()
        self._running: Prefetcher | None = None
        self._connections = Connections(transport.prefetch_bytes)
        self.is_broken = False
        self._finalizer: weakref.finalize[[Prefetcher, object], LiveStream] | None = None
        self._past = ClientStats()

    def __reduce__(
        self,
    ) -> tuple[
        type[LiveStream], tuple[Transport, Transformation | None, Callable[[], Mover] | None]
    ]:
        """Unpickle with nothing running."""
        return LiveStream, (self._wanted, self._transformation, self._make_mover)

    def next_event(self, make_reader: Callable[[Landing], BatchReader]) -> Event | None:
        """Take the next event, or None at the end; start to read if nothing runs.

        Args:
            make_reader: Makes the reader that starts after the last event handed over.

        Raises:
            HeadraceError: The reader gave up; the next call starts over.
        """
        if self._process is not _process:
            # Forked: thread and connection belong to the parent, and do not exist here.
            self.__init__(*self.__reduce__()[1])  # type: ignore[misc] # the same class, always
        if self.is_broken:
            self.close()
        if self._ready:
            return self._ready.popleft()
        if self._running is None:
            shortage, budget = self._transport.cache_shortage, self._wanted.prefetch_bytes
            self._transport = TransportState(cache_shortage=shortage)
            # A server fills shared memory ahead; transfers and transformations need this thread.
            is_plain = self._make_mover is None and self._transformation is None
            self._running = Prefetcher(
                self._reader(make_reader),
                budget_bytes=max(0, budget - 2 * window(budget)),
                limit=self._transport.ready_bytes,
                is_ahead=self._transport.is_shared if is_plain else None,
                loop_may_lead=self._transformation is None,
            )
            self._finalizer = weakref.finalize(self, _end, self._running, _process)
        try:
            return self._first_of(self._running.get())
        except BaseException:
            # Ctrl-C too: a stream that was interrupted within a message cannot continue. Ctrl-C may
            # come again at once, so this is noted before anything is called.
            self.is_broken = True
            self.close()
            raise

    def _first_of(self, event: Event | None) -> Event | None:
        """Return the event, or the first of the batches that came with it; the others follow."""
        if isinstance(event, BatchEvent) and event.ahead is not None:
            self._ready, event.ahead = event.ahead, None
            self._ready.append(event)
            return self._ready.popleft()
        return event

    def _reader(self, make_reader: Callable[[Landing], BatchReader]) -> Reader:
        most = self._wanted.max_batch_bytes
        landing = Landing(
            self._pool.take,
            None,
            self._transport,
            max_batch_bytes=most,
            connections=self._connections,
        )
        if self._transformation is not None:
            return TransformingReader(make_reader(landing), self._transformation)
        if self._make_mover is None:
            return make_reader(replace(landing, takes_runs=True))
        mover = self._mover = self._mover or self._make_mover()
        moved = replace(landing, allocate=mover.take, adopt=mover.adopt, keep=None)
        return mover.moving(make_reader(moved))

    @property
    def may_stay(self) -> bool:
        """Whether the stream may go on when the ranks are agreed on, and nothing changes here."""
        return True

    def reopen(self) -> None:
        """Stop reading and drop the prefetched batches; the next stream takes the connection."""
        if self._running is not None and self._process is _process:
            self._connections.keep()
        self._end()

    def close(self) -> None:
        """Stop reading and drop the prefetched batches; completes an interrupted close, too."""
        self._end()
        self._connections.drop()

    def _end(self) -> None:
        self.is_broken = True
        self._ready.clear()
        running = self._running
        if running is not None and self._process is _process:
            running.close()
            self._past += self._stats_of(running)
            if self._finalizer is not None:
                self._finalizer.detach()
        self._running = None
        self.is_broken = False

    def note_damaged(self, count: int) -> None:
        """Count damaged samples that were replaced by others."""
        self._past += ClientStats(damaged_count=count)

    def transform_by(self, transformation: Transformation | None) -> None:
        """Call another function with the batches of the streams from here on; none may run."""
        self._transformation = transformation

    @property
    def columns(self) -> tuple[pb.Column, ...]:
        """What batches of the last stream have; empty before the first batch."""
        return self._transport.columns

    def stats(self) -> ClientStats:
        """Return the sum over all streams of this process."""
        return self._past if self._running is None else self._past + self._stats_of(self._running)

    def _stats_of(self, running: Prefetcher) -> ClientStats:
        transport = self._transport
        return ClientStats(
            running.waited_s,
            running.reconnect_count,
            running.waited_on,
            transport.name,
            transport.reason,
            transport.batch_count,
            running.hedges.asked,
            running.hedges.won,
            cache_shortage=transport.cache_shortage,
            culprit=culprit_of(running.recent()),
        )


def open_reader(
    endpoints: Endpoints,
    options: ReadOptions,
    place: Place,
    transport: Transport,
    landing: Landing,
    *,
    group: Group | None = None,
) -> BatchReader:
    """Return a reader of batches, which go where `LiveStream` wants them.

    Args:
        endpoints: The servers.
        options: What to read.
        place: Where to start.
        transport: How.
        landing: Where batches go.
        group: With whom this process shares the stream; None for a stream of its own.
    """
    deadlines = transport.deadlines
    if transport.hedge is not None:
        # Hedging watches each batch.
        landing = replace(landing, takes_runs=False)
    opens = Feeds if group is None else partial(HostFeeds, group=group)
    return BatchReader(
        endpoints,
        options,
        place=place,
        deadlines=deadlines,
        allocate=landing.allocate,
        open_feed=opens(transport, landing, silence_s=deadlines.silence_s),
        hedge=transport.hedge,
        max_batch_bytes=transport.max_batch_bytes,
        group_bytes=0 if window(transport.prefetch_bytes) else GROUP_BYTES,
    )


# Asking for the process id would cost a system call per batch.
_process = object()
_of_parents: list[Prefetcher] = []


def _end(running: Prefetcher, process: object) -> None:
    if process is _process:
        running.close()
    else:
        # Forked: the connection and the ring are the parent's, which goes on reading. What is kept
        # here is not ended by its finalizers either.
        _of_parents.append(running)


def _become_another() -> None:
    global _process  # noqa: PLW0603 - what a fork changes
    _process = object()


os.register_at_fork(after_in_child=_become_another)
