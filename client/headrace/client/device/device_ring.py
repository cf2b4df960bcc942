"""Bring batches to a device: one copy from the wire into a ring, one transfer of the payload.

Contract:

1. Ring: payloads are received into buffers that are made once, touched once and, for CUDA, pinned
   once. A steady run makes no new ones.
2. Transfer: `DeviceRing.move` starts one asynchronous copy of the whole payload and does not wait
   for it. What must stay on the CPU (strings, bytes, offsets to index by) is copied out first.
3. Ownership: a buffer returns to the ring when its copy has ended, never sooner, whether or not the
   batch still exists. The payload on the device belongs to the batch.
4. Handover: `Copy.hand_over` makes the loop's stream wait for the copy, not the loop.
5. Close: waits for the copies under way, then drops the buffers.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client.device.cuda_copy import Copies, Copy, copies_to
from headrace.client.feeds.feed import Event
from headrace.client.reader.prefetch import Reader, ReaderAround
from headrace.client.wire.assembler import BatchEvent
from headrace.client.wire.buffers import BufferPool
from headrace.client.wire.column_spans import ColumnSpan, span_of
from headrace.client.wire.payload_layout import ColumnView
from headrace.v1 import shard_service_pb2 as pb


@dataclass(slots=True, eq=False)
class MovedEvent(BatchEvent):
    """A batch whose payload is on a device, or on its way there.

    ``columns`` holds what is not read on the device, in separate host memory; ``payload`` is empty.

    Attributes:
        copy: The payload on the device.
        spans: Where each column lies in it.
    """

    copy: Copy
    spans: dict[str, ColumnSpan]


class DeviceRing:
    """The buffers that payloads pass on their way to one device.

    Only the reading thread may call `take`, `move` and `close`.
    """

    def __init__(self, copies: Copies, *, idle_bytes: int) -> None:
        """Make a ring without buffers.

        Args:
            copies: The way to the device.
            idle_bytes: Most bytes of buffers to keep for reuse, >= 0.
        """
        self._copies = copies
        self._buffers = BufferPool(idle_bytes=idle_bytes, make=copies.make_buffer)
        self._flying: deque[tuple[NDArray[np.uint8], Copy]] = deque()

    def take(self, size: int) -> NDArray[np.uint8]:
        """Return a buffer to receive ``size`` bytes into, for `move`."""
        self._land()
        return self._buffers.take(size)

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Note memory that a server writes payloads to."""
        self._copies.adopt(memory)

    def move(self, event: BatchEvent) -> MovedEvent:
        """Start the transfer of a batch in a buffer of this ring, or in adopted memory."""
        self._land()
        payload = event.payload
        spans = {name: span_of(view, payload) for name, view in event.columns.items()}
        kept = {name: _on_host(view) for name, view in event.columns.items()}
        copy = self._copies.start(payload)
        self._flying.append((payload, copy))
        return MovedEvent(event.header, kept, np.empty(0, np.uint8), copy, spans)

    def moving(self, reader: Reader) -> MovingReader:
        """Return a reader of the same batches, on the device.

        Args:
            reader: Its payloads come from `take`, or lie in memory that was adopted.
        """
        return MovingReader(reader, self)

    def close(self) -> None:
        """Wait for the copies under way, and release their buffers."""
        while self._flying:
            self._flying[0][1].wait()
            self._flying.popleft()

    def _land(self) -> None:
        # Copies on one stream end in the order in which they started.
        while self._flying and self._flying[0][1].has_ended():
            self._flying.popleft()


def ring_to(device: torch.device, *, idle_bytes: int) -> DeviceRing:
    """Return a ring to a device, with at most ``idle_bytes`` of buffers kept for reuse."""
    return DeviceRing(copies_to(device), idle_bytes=idle_bytes)


class MovingReader(ReaderAround):
    """A reader whose batches are on a device."""

    def __init__(self, reader: Reader, ring: DeviceRing) -> None:
        """Receive a reader's payloads into buffers of a ring, and move them to the device.

        Args:
            reader: Its payloads come from ``ring.take``.
            ring: Closed when the events end.
        """
        super().__init__(reader)
        self._ring = ring

    def events(self) -> Generator[Event, None, None]:
        """Yield the reader's events, with moved batches."""
        try:
            for event in self._reader.events():
                yield self._moved(event) if isinstance(event, BatchEvent) else event
        finally:
            self._ring.close()

    def _moved(self, event: BatchEvent) -> MovedEvent:
        self.clock.enter("copy")
        moved = self._ring.move(event)
        self.clock.enter("rest")
        return moved


def _on_host(view: ColumnView) -> ColumnView:
    if view.kind == pb.COLUMN_KIND_TENSOR:
        empty: NDArray[np.generic] = np.empty(0, view.values.dtype)
        return ColumnView(view.kind, empty)
    assert view.offsets is not None
    is_ragged = view.kind == pb.COLUMN_KIND_RAGGED
    values = np.empty(0, view.values.dtype) if is_ragged else view.values.copy()
    valid = None if view.valid is None else view.valid.copy()
    return ColumnView(view.kind, values, view.offsets.copy(), valid)
