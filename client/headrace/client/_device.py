"""Bring batches to a device: one copy from the wire into a ring, one transfer of the payload.

Contract:

1. Ring: payloads are received into buffers that are made once, touched once and, for CUDA, pinned
   once. A steady run makes no more of them.
2. Transfer: `DeviceRing.move` starts one asynchronous copy of the whole payload and does not wait
   for it. What must stay on the CPU (strings, bytes, offsets to index by) is copied out first.
3. Ownership: a buffer returns to the ring when its copy has ended, never sooner, and whether or
   not the batch lives. The payload on the device belongs to the batch.
4. Handover: `Copy.hand_over` makes the loop's stream wait for the copy, not the loop.
5. Close: waits for the copies under way, then drops the buffers.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client._assembler import BatchEvent
from headrace.client._buffers import BufferPool, aligned
from headrace.client._feed import Event
from headrace.client._hedging import HedgeCounts
from headrace.client._hops import HopClock
from headrace.client._layout import ColumnView
from headrace.client._prefetch import Reader
from headrace.client._spans import ColumnSpan, span_of
from headrace.errors import BadArgumentError
from headrace.v1 import shard_service_pb2 as pb

_log = logging.getLogger(__name__)


class Copy(Protocol):
    """One payload on its way to a device."""

    @property
    def target(self) -> torch.Tensor:
        """``(payload_bytes,) uint8`` on the device; valid after `hand_over`."""

    def has_ended(self) -> bool:
        """Say whether the source may be written again; does not wait."""

    def hand_over(self) -> None:
        """Make work that the calling thread starts from now on see the payload."""

    def wait(self) -> None:
        """Return when the source may be written again."""


class Copies(Protocol):
    """A way to a device."""

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return ``(size,)`` bytes at least that transfers begin from, 64-byte aligned."""

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Prepare memory that transfers will begin from, and that was made elsewhere."""

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Begin to copy; ``payload`` must stay as it is until the copy has ended."""


@dataclass(slots=True, eq=False)
class MovedEvent(BatchEvent):
    """A batch whose payload is on a device, or on its way there.

    ``columns`` holds, in host memory of its own, what is not read on the device; ``payload`` is
    empty.

    Attributes:
        copy: The payload on the device.
        spans: Where each column lies in it.
    """

    copy: Copy
    spans: dict[str, ColumnSpan]


class DeviceRing:
    """The buffers that payloads pass on their way to one device.

    `take`, `move` and `close` are for the one thread that reads.
    """

    def __init__(self, copies: Copies, *, idle_bytes: int) -> None:
        """Begin with no buffers.

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
        """Take note of memory that a server writes payloads to."""
        self._copies.adopt(memory)

    def move(self, event: BatchEvent) -> MovedEvent:
        """Start the transfer of a batch that was received into a buffer of this ring.

        Or into memory that was adopted.
        """
        self._land()
        payload = event.payload
        spans = {name: span_of(view, payload) for name, view in event.columns.items()}
        kept = {name: _on_host(view) for name, view in event.columns.items()}
        copy = self._copies.start(payload)
        self._flying.append((payload, copy))
        return MovedEvent(event.header, kept, np.empty(0, np.uint8), copy, spans)

    def close(self) -> None:
        """Wait for the copies under way and let go of their buffers."""
        while self._flying:
            self._flying[0][1].wait()
            self._flying.popleft()

    def _land(self) -> None:
        # Copies of one stream end in the order in which they began.
        while self._flying and self._flying[0][1].has_ended():
            self._flying.popleft()


class MovingReader:
    """A reader whose batches are on a device."""

    def __init__(self, reader: Reader, ring: DeviceRing) -> None:
        """Move what a reader reads into buffers of a ring.

        Args:
            reader: Its payloads come from ``ring.take``.
            ring: Closed when the events end.
        """
        self._reader = reader
        self._ring = ring

    @property
    def reconnect_count(self) -> int:
        """How often the reader had to reconnect."""
        return self._reader.reconnect_count

    @property
    def hedges(self) -> HedgeCounts:
        """What became of hedges."""
        return self._reader.hedges

    @property
    def clock(self) -> HopClock:
        """What the reader is busy with; here, the copies too."""
        return self._reader.clock

    def events(self) -> Generator[Event, None, None]:
        """Yield the reader's events, batches moved."""
        try:
            for event in self._reader.events():
                yield self._moved(event) if isinstance(event, BatchEvent) else event
        finally:
            self._ring.close()

    def close(self) -> None:
        """End the reading."""
        self._reader.close()

    def _moved(self, event: BatchEvent) -> MovedEvent:
        self.clock.enter("copy")
        moved = self._ring.move(event)
        self.clock.enter("rest")
        return moved


def checked_device(name: str | torch.device) -> torch.device:
    """Return the device of that name.

    Raises:
        BadArgumentError: It is neither the CPU nor a CUDA device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise BadArgumentError(
            f"device is {str(name)!r}; wanted 'cuda', 'cuda:N' or 'cpu', or None to leave batches "
            "where they are received",
            field="device",
        )
    return device


def copies_to(device: torch.device) -> Copies:
    """Return the way to a device.

    Raises:
        BadArgumentError: This process has no CUDA.
    """
    if device.type == "cpu":
        return HostCopies()
    if not torch.cuda.is_available():
        raise BadArgumentError(
            f"device is {str(device)!r}, and this process sees no CUDA device; wanted a CUDA "
            "build of torch and a visible device, or device='cpu'",
            field="device",
        )
    return CudaCopies(device)


class HostCopies:
    """The same path without CUDA: the copy has ended when it has begun."""

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return touched memory."""
        buffer = aligned(size)
        buffer[:] = 0
        return buffer

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Copy from it as it is."""

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Copy at once."""
        return _EndedCopy(torch.from_numpy(payload).clone())


@dataclass(frozen=True, slots=True, eq=False)
class _EndedCopy:
    target: torch.Tensor

    def has_ended(self) -> bool:
        return True

    def hand_over(self) -> None:
        pass

    def wait(self) -> None:
        pass


class CudaCopies:
    """Transfers on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream.

        Args:
            device: A CUDA device; without an index, the current one.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call] # torch leaves it so

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return pinned, touched memory."""
        # Pinning synchronises the device, so a little more than this batch needs is taken, for
        # the next ones to fit: arbitrary, 1/8.
        pinned = torch.empty(size + size // 8, dtype=torch.uint8, pin_memory=True)
        pinned.zero_()
        return pinned.numpy()

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Pin it for as long as it is mapped, so that transfers start from it itself."""
        address, cudart = memory.ctypes.data, torch.cuda.cudart()  # type: ignore[no-untyped-call] # likewise
        with torch.cuda.device(self._device):
            failed = int(cudart.cudaHostRegister(address, memory.nbytes, 0))
        if failed:
            _log.warning(
                "%d bytes of a ring could not be pinned (CUDA error %d): transfers are slower; "
                "raise the limit on locked memory, or ask for a smaller ring with ring_bytes",
                memory.nbytes,
                failed,
            )
            return
        weakref.finalize(memory, _unpin, address, self._device).atexit = False

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Begin the transfer; the calling thread goes on at once."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            target = torch.empty(payload.size, dtype=torch.uint8, device=self._device)
            target.copy_(torch.from_numpy(payload), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call] # likewise
            done.record(self._stream)
        return _CudaCopy(target, done)


def _unpin(address: int, device: torch.device) -> None:
    # In whichever thread the last view ends, which may stand at another device.
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call] # torch leaves it so


@dataclass(frozen=True, slots=True, eq=False)
class _CudaCopy:
    target: torch.Tensor
    done: torch.cuda.Event

    def has_ended(self) -> bool:
        return bool(self.done.query())  # type: ignore[no-untyped-call] # likewise

    def hand_over(self) -> None:
        stream = torch.cuda.current_stream(self.target.device)
        stream.wait_event(self.done)
        # The memory came from the side stream: without this the allocator would give it to the
        # next transfer while the loop's stream still reads it.
        self.target.record_stream(stream)

    def wait(self) -> None:
        self.done.synchronize()


def _on_host(view: ColumnView) -> ColumnView:
    if view.kind == pb.COLUMN_KIND_TENSOR:
        empty: NDArray[np.generic] = np.empty(0, view.values.dtype)
        return ColumnView(view.kind, empty)
    assert view.offsets is not None
    is_ragged = view.kind == pb.COLUMN_KIND_RAGGED
    values = np.empty(0, view.values.dtype) if is_ragged else view.values.copy()
    valid = None if view.valid is None else view.valid.copy()
    return ColumnView(view.kind, values, view.offsets.copy(), valid)
