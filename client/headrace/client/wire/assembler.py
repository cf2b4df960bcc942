"""Turn the messages of one stream into whole batches: no I/O, no threads, no clock.

Contract. For any sequence of messages:

1. An event comes out only for a batch whose payload is complete and has the stated checksum, or
   for an epoch's end whose counts match the batches that came out.
2. Everything that the protocol does not allow raises `StreamCorruptError`. After that, the
   assembler must not be used, and the caller resumes from the token of the last event.
3. Heartbeats change nothing.
4. With ``keep``, a payload that is whole in its message stays there if it is aligned for its
   columns. Any other is copied once, from its messages into memory from ``allocate``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import xxhash
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from headrace.client.wire.bounds import Bounds
from headrace.client.wire.frames import (
    ALIGNMENT,
    BATCH,
    CHUNK,
    HEARTBEAT,
    START,
    MessageFrame,
    kind_name,
    memory_of,
    read_frame,
)
from headrace.client.wire.payload_layout import ColumnPlaces, ColumnView, PayloadReader, views_of
from headrace.errors import StreamCorruptError
from headrace.v1 import shard_service_pb2 as pb

Allocate = Callable[[int], NDArray[np.uint8]]
"""Returns ``(size,) uint8`` that the caller owns, with any content."""

Keep = Callable[[bytes], NDArray[np.uint8]]
"""Returns the memory of a message, to which there is no other reference."""

Pieces = Callable[[NDArray[np.uint8]], Iterable[NDArray[np.uint8]]]
"""Receives bytes into ``(size,) uint8``, and yields each part of it when it is there."""

_log = logging.getLogger(__name__)


_PIECE_BYTES = 256 << 10
"""Bytes that are hashed, then copied, while they are in the processor's second cache: this takes
three quarters of the time of two passes, for 16 MiB in chunks of 2 MiB."""

_NOTHING = np.empty(0, dtype=np.uint8)


Mark = pb.BatchHeader | bytes
"""A batch's header, or the message that holds it; it keeps no memory of the batch alive."""


def header_of(mark: Mark) -> pb.BatchHeader:
    """Return the header.

    Raises:
        StreamCorruptError: The message holds no header.
    """
    if not isinstance(mark, bytes):
        return mark
    try:
        return pb.ReadBatchesResponse.FromString(mark).batch
    except DecodeError as error:
        raise StreamCorruptError(f"the message of a slot cannot be read: {error}") from error


# Made for each batch: a frozen one would take three times as long.
@dataclass(slots=True, eq=False)
class BatchEvent:
    """One whole batch, its checksum verified; nobody changes it.

    Attributes:
        header: The wire's header; ``header.resume_token`` resumes after this batch.
        columns: Views of ``payload`` by column name, in the stream's order.
        payload: ``(payload_bytes,) uint8``, writable, owned by this event.
        ahead: Batches that came together with this one and before it; they are handed over first.
    """

    header: pb.BatchHeader
    columns: dict[str, ColumnView]
    payload: NDArray[np.uint8]
    ahead: deque[BatchEvent] | None = field(default=None, kw_only=True)

    @property
    def mark(self) -> Mark:
        """What is kept of a batch after its memory is freed."""
        return self.header

    @property
    def sample_count(self) -> int:
        """Number of samples of the batch."""
        return self.header.sample_count


class PayloadArray(NamedTuple):
    """An array in a payload: one of its buffers.

    Attributes:
        name: The name of the column, or ``column.valid``.
        kind: ``pb.ColumnKind`` of the column; validity columns count as tensors.
        buffer: The index of the buffer.
        shape: Its shape; empty for all the values that the buffer holds.
        dtype: The type of its items.
    """

    name: str
    kind: int
    buffer: int
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


class PartsForm(Protocol):
    """What batches have in common whose arrays are made on demand.

    Attributes:
        sample_count: Samples of a batch.
        entries: The first array of each entry of a batch, in their order.
        has_ids: Whether one of them holds the sample ids.
    """

    sample_count: int
    entries: tuple[PayloadArray, ...]
    has_ids: bool


class PartsEvent(BatchEvent):
    """A batch whose arrays are made on demand; each keeps the memory of the batch alive."""

    __slots__ = ()

    @property
    def form(self) -> PartsForm:
        """What the batch has in common with others."""
        raise NotImplementedError

    def array(self, part: PayloadArray) -> NDArray[Any]:
        """Return an array of the batch."""
        raise NotImplementedError

    def view_of(self, column: str) -> ColumnView:
        """Return the views of a column."""
        raise NotImplementedError


class LikeEvent(BatchEvent):
    """A batch of tensors with the layout of the one before; ``columns`` is made on demand."""

    __slots__ = ("_places",)

    def __init__(
        self, header: pb.BatchHeader, payload: NDArray[np.uint8], places: ColumnPlaces
    ) -> None:
        self.header, self.payload, self.ahead, self._places = header, payload, None, places

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name != "columns":
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            self.columns = found = views_of(self._places, self.payload.data)
            return found


@dataclass(frozen=True, slots=True)
class EpochEndEvent:
    """The end of an epoch; ``resume_token`` resumes at the start of the next."""

    epoch: int
    resume_token: bytes


class StreamAssembler:
    """Assemble the batches of one `ReadBatches` stream."""

    def __init__(
        self,
        allocate: Allocate,
        *,
        keep: Keep | None = memory_of,
        bounds: Bounds | None = None,
        on_start: Callable[[pb.StreamStart], None] | None = None,
    ) -> None:
        """Start before the first message.

        Args:
            allocate: Where the payloads go.
            keep: Makes a message memory of its batch; None to copy all payloads.
            bounds: Upper bounds of a batch; None for `Bounds()`.
            on_start: Takes the first message; None to ignore it.
        """
        self._bounds = bounds or Bounds()
        self._most_bytes = self._bounds.payload_bytes
        self._most_samples = self._bounds.sample_count
        self._allocate, self._keep, self._on_start = allocate, keep, on_start
        self._start: pb.StreamStart | None = None
        self._layout = PayloadReader(())
        self._header: pb.BatchHeader | None = None
        self._payload = _NOTHING
        self._filled = 0
        self._digest = xxhash.xxh3_64()
        self._batch_count = 0
        self._sample_count = 0

    @property
    def start(self) -> pb.StreamStart | None:
        """What applies to all batches; None before the first message."""
        return self._start

    def feed(self, message: bytes) -> BatchEvent | EpochEndEvent | None:
        """Take one encoded message; return the event it completes, if any.

        Args:
            message: There must be no other reference: with ``keep``, the event may take its memory.

        Raises:
            StreamCorruptError: The message does not fit what came before, or its bytes are damaged.
        """
        return self.take(read_frame(message))

    def take(self, frame: MessageFrame) -> BatchEvent | EpochEndEvent | None:
        """Take the parts of a message; see `feed`."""
        kind = frame.kind
        try:
            if kind == BATCH and self._header is None and self._start is not None:
                return self._begin_batch(frame)
            if kind == CHUNK and self._header is not None:
                offset = pb.Chunk.FromString(frame.event).payload_offset
                return self._add(self._header, offset, frame)
            if kind == HEARTBEAT:
                return None
            if kind == START:
                self._begin_stream(pb.StreamStart.FromString(frame.event))
                return None
            self._refuse_out_of_place(kind)
            return self._end_epoch(pb.EpochEnd.FromString(frame.event))
        except DecodeError as error:
            raise StreamCorruptError(f"a {kind_name(kind)!r} cannot be read: {error}") from error

    def receive(self, frame: MessageFrame, pieces: Pieces) -> BatchEvent | None:
        """Take a message with a part of a batch, whose bytes are received into their place.

        Args:
            frame: The parts of the message, without the payload.
            pieces: Receives the payload.

        Raises:
            StreamCorruptError: The message does not fit what came before, or its bytes are damaged.
        """
        header, offset = self._header, 0
        try:
            if frame.kind == BATCH and header is None and self._start is not None:
                header = pb.BatchHeader.FromString(frame.event)
                self._begin_payload(header)
            elif frame.kind == CHUNK and header is not None:
                offset = pb.Chunk.FromString(frame.event).payload_offset
        except DecodeError as error:
            name = kind_name(frame.kind)
            raise StreamCorruptError(f"a {name!r} cannot be read: {error}") from error
        if header is None or frame.kind not in (BATCH, CHUNK):
            self._refuse_out_of_place(frame.kind)
            raise StreamCorruptError(f"{kind_name(frame.kind)!r} came with a payload")
        end = self._end_of(offset, frame)
        for piece in pieces(self._payload[self._filled : end]):
            self._digest.update(piece.data)
        return self._advance(header, end)

    def _refuse_out_of_place(self, kind: int) -> None:
        name = kind_name(kind)
        if self._start is None:
            raise StreamCorruptError(f"a stream started with {name!r}; expected 'start'")
        if self._header is not None:
            raise StreamCorruptError(
                f"{name!r} came after {self._filled} of {self._payload.size} payload bytes"
            )
        if kind == CHUNK:
            raise StreamCorruptError("a chunk arrived outside of a batch")

    def adopt(self, header: pb.BatchHeader, payload: NDArray[np.uint8]) -> BatchEvent:
        """Take a batch whose payload lies in memory that the server wrote.

        Args:
            header: Its header; the payload is verified if this has a checksum.
            payload: ``(payload_bytes,) uint8``.

        Raises:
            StreamCorruptError: It does not fit what came before, or its bytes are damaged.
        """
        self._check_between()
        if payload.size != header.payload_bytes:
            raise StreamCorruptError(
                f"a slot has {payload.size} payload bytes; its header says {header.payload_bytes}"
            )
        if header.payload_xxh3:
            _check(header, xxhash.xxh3_64_intdigest(payload.data))
        return self._event(header, payload)

    def pass_over(self, batch_count: int, sample_count: int) -> None:
        """Count batches that are like the last one, and need not be read.

        Args:
            batch_count: Their number.
            sample_count: Number of samples in all of them.

        Raises:
            StreamCorruptError: They do not fit what came before.
        """
        self._check_between()
        self._batch_count += batch_count
        self._sample_count += sample_count

    def _check_between(self) -> None:
        if self._start is None or self._header is not None:
            raise StreamCorruptError(
                "a batch arrived in the ring before the stream's start, or inside another batch"
            )

    def _begin_stream(self, start: pb.StreamStart) -> None:
        if self._start is not None:
            raise StreamCorruptError("a second 'start' arrived in one stream")
        if start.HasField("order") and not start.epoch_sample_count:
            _log.warning("%r has no samples: loops over it end at once", start.dataset.name)
        self._start = start
        self._layout = PayloadReader(start.columns)
        if self._on_start is not None:
            self._on_start(start)

    def _begin_batch(self, frame: MessageFrame) -> BatchEvent | None:
        message, _, start, end, at, stop = frame
        header = pb.BatchHeader.FromString(message[start:end])
        size = header.payload_bytes
        if not 0 <= size <= self._most_bytes:
            self._bounds.refuse_payload(header)
        is_whole = size and at + size == stop
        if is_whole and self._keep is not None and not at % ALIGNMENT:
            payload = self._keep(message)[at:stop]
            _check(header, xxhash.xxh3_64_intdigest(payload.data))
            return self._event(header, payload)
        self._begin_payload(header)
        return self._add(header, 0, frame)

    def _begin_payload(self, header: pb.BatchHeader) -> None:
        size = header.payload_bytes
        if not 0 <= size <= self._most_bytes:
            self._bounds.refuse_payload(header)
        self._payload = self._allocate(size)
        self._filled = 0
        self._digest.reset()

    def _add(self, header: pb.BatchHeader, offset: int, frame: MessageFrame) -> BatchEvent | None:
        start, end = self._filled, self._end_of(offset, frame)
        if end > start:
            source = np.frombuffer(frame.message, np.uint8, end - start, frame.payload)
            _copy(source, self._payload[start:end], self._digest)
        return self._advance(header, end)

    def _end_of(self, offset: int, frame: MessageFrame) -> int:
        """Return where in the payload a message's part ends."""
        payload, start = self._payload, self._filled
        end = start + frame.stop - frame.payload
        if offset != start or end > payload.size or start == end < payload.size:
            raise StreamCorruptError(
                f"a chunk covers payload bytes [{offset}, {offset + end - start}); expected "
                f"[{start}, …) of {payload.size}"
            )
        return end

    def _advance(self, header: pb.BatchHeader, end: int) -> BatchEvent | None:
        payload = self._payload
        if end < payload.size:
            self._header, self._filled = header, end
            return None
        self._header, self._payload = None, _NOTHING
        _check(header, self._digest.intdigest())
        return self._event(header, payload)

    def _event(self, header: pb.BatchHeader, payload: NDArray[np.uint8]) -> BatchEvent:
        sample_count = header.sample_count
        if not 0 <= header.pad_count <= sample_count <= self._most_samples:
            self._bounds.refuse_samples(header)
        self._batch_count += 1
        self._sample_count += sample_count
        lengths, layout = header.buffer_bytes, self._layout
        places = layout.like_last(lengths, payload_bytes=payload.size, sample_count=sample_count)
        if places is not None:
            return LikeEvent(header, payload, places)
        return BatchEvent(
            header, layout.decode(lengths, payload, sample_count=sample_count), payload
        )

    def _end_epoch(self, end: pb.EpochEnd) -> EpochEndEvent:
        found = (self._batch_count, self._sample_count)
        stated = (end.batch_count, end.sample_count)
        if found != stated:
            raise StreamCorruptError(
                f"epoch {end.epoch} ended after {found[0]} batches with {found[1]} samples, but "
                f"the server sent {stated[0]} with {stated[1]}"
            )
        self._batch_count = self._sample_count = 0
        return EpochEndEvent(end.epoch, end.resume_token)


def _check(header: pb.BatchHeader, found: int) -> None:
    if found != header.payload_xxh3:
        raise StreamCorruptError(
            f"the batch at epoch {header.epoch} position {header.position} has checksum "
            f"{found:016x}, but its header says {header.payload_xxh3:016x}"
        )


def _copy(source: NDArray[np.uint8], payload: NDArray[np.uint8], digest: xxhash.xxh3_64) -> None:
    """Copy a part of a payload, and hash it."""
    for start in range(0, source.size, _PIECE_BYTES):
        piece = source[start : start + _PIECE_BYTES]
        digest.update(piece.data)
        # NumPy lets other threads run meanwhile.
        payload[start : start + piece.size] = piece
