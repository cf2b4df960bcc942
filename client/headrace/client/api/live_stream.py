"""The running stream of a dataset: made when it is needed, in the process that needs it."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from headrace.client.device.cuda_copy import copies_to
from headrace.client.device.device_ring import DeviceRing, MovingReader
from headrace.client.feeds.feed import Event
from headrace.client.feeds.transport import Landing, TransportState
from headrace.client.feeds.wait_times import HopSeconds
from headrace.client.reader.prefetch import Prefetcher, Reader
from headrace.client.reader.reader import BatchReader
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.buffers import BufferPool


@dataclass(frozen=True, slots=True)
class ClientStats:
    """What a dataset has been through, in this process.

    Attributes:
        waited_s: Seconds the loop waited for batches; beside the loop's own time this is how
            starved it was.
        reconnect_count: How often it was tried to open the stream again; a server that is away
            for a while costs several tries, so this counts no faults.
        waited_on: The hops that ``waited_s`` went to; what is missing to the sum went to the
            handover between threads.
        transport: How batches come at the moment, or came last: ``ring``, shared memory with a
            server on this host, or ``grpc``; empty before the first stream.
        transport_reason: Why not through a ring, or why that is smaller than was asked for; else
            empty.
        ring_batch_count: Batches that came through a ring.
        hedge_count: Late batches that a second server was asked for (``hedge=``).
        hedge_won_count: Those that came from it first.
    """

    waited_s: float = 0.0
    reconnect_count: int = 0
    waited_on: HopSeconds = field(default_factory=HopSeconds)
    transport: str = ""
    transport_reason: str = ""
    ring_batch_count: int = 0
    hedge_count: int = 0
    hedge_won_count: int = 0

    def __add__(self, other: ClientStats) -> ClientStats:
        latest = other if other.transport else self
        return ClientStats(
            self.waited_s + other.waited_s,
            self.reconnect_count + other.reconnect_count,
            self.waited_on + other.waited_on,
            latest.transport,
            latest.transport_reason,
            self.ring_batch_count + other.ring_batch_count,
            self.hedge_count + other.hedge_count,
            self.hedge_won_count + other.hedge_won_count,
        )


class LiveStream:
    """Own the prefetcher of one process; threads and connections never travel to another."""

    def __init__(self, prefetch_bytes: int, device: torch.device | None = None) -> None:
        """Begin with nothing running.

        Args:
            prefetch_bytes: Most payload bytes to hold ready; as many may idle for reuse.
            device: Where batches go; None to leave them in the memory they are received in.
        """
        self.device = device
        self._prefetch_bytes = prefetch_bytes
        self._process = _process
        self._ready: deque[BatchEvent] = deque()
        self._pool = BufferPool(idle_bytes=prefetch_bytes)
        self._ring: DeviceRing | None = None
        self._transport = TransportState()
        self._running: Prefetcher | None = None
        self.is_broken = False
        self._finalizer: weakref.finalize[[], LiveStream] | None = None
        self._past = ClientStats()

    def __reduce__(self) -> tuple[type[LiveStream], tuple[int, torch.device | None]]:
        """Arrive elsewhere with nothing running."""
        return LiveStream, (self._prefetch_bytes, self.device)

    def next_event(self, make_reader: Callable[[Landing], BatchReader]) -> Event | None:
        """Take the next event, or None at the end; begin to read if nothing runs.

        Args:
            make_reader: Makes the reader that begins after the last event handed over.

        Raises:
            HeadraceError: The reader gave up; the next call starts over.
        """
        if self._process is not _process:
            # Forked: the parent's thread and connection did not come along, and are the parent's.
            self.__init__(self._prefetch_bytes, self.device)  # type: ignore[misc] # the same class, always
        if self.is_broken:
            self.close()
        if self._ready:
            return self._ready.popleft()
        if self._running is None:
            self._transport = TransportState()
            reader = self._reader(make_reader)
            self._running = Prefetcher(
                reader,
                budget_bytes=self._prefetch_bytes,
                limit=self._transport.ready_bytes,
                # Transfers to a device are begun ahead by us alone.
                is_ahead=self._transport.has_ring if self.device is None else None,
            )
            self._finalizer = weakref.finalize(self, self._running.close)
        try:
            return self._first_of(self._running.get())
        except BaseException:
            # Also Ctrl-C: what was interrupted in the middle of a message cannot go on. It may come
            # again at once, so this is noted before anything is called.
            self.is_broken = True
            self.close()
            raise

    def _first_of(self, event: Event | None) -> Event | None:
        """Return the event, or the first of the batches that came with it; the others are next."""
        if isinstance(event, BatchEvent) and event.ahead is not None:
            self._ready, event.ahead = event.ahead, None
            self._ready.append(event)
            return self._ready.popleft()
        return event

    def _reader(self, make_reader: Callable[[Landing], BatchReader]) -> Reader:
        if self.device is None:
            return make_reader(Landing(self._pool.take, None, self._transport, takes_runs=True))
        if self._ring is None:
            self._ring = DeviceRing(copies_to(self.device), idle_bytes=self._prefetch_bytes)
        landing = Landing(self._ring.take, self._ring.adopt, self._transport, keep=None)
        return MovingReader(make_reader(landing), self._ring)

    def close(self) -> None:
        """End what runs, and drop what was prefetched; once more, if that was interrupted."""
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

    def stats(self) -> ClientStats:
        """Sum up all that ran in this process."""
        return self._past if self._running is None else self._past + self._stats_of(self._running)

    def _stats_of(self, running: Prefetcher) -> ClientStats:
        transport = self._transport
        return ClientStats(
            running.waited_s,
            running.reconnect_count,
            running.waited_on,
            transport.name,
            transport.reason,
            transport.ring_batch_count,
            running.hedges.asked,
            running.hedges.won,
        )


# Asking for the process's id would cost each batch a call of the kernel.
_process = object()


def _become_another() -> None:
    global _process  # noqa: PLW0603 - what a fork changes
    _process = object()


os.register_at_fork(after_in_child=_become_another)
