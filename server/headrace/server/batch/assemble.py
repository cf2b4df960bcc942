"""Assemble a batch: gathered columns into the payload of its messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.payload import SAMPLE_ID_COLUMN, PayloadLayout, layout_of
from headrace.server.batch.chunked_payload import PartPieces, Pieces
from headrace.server.batch.compiled_batches import AtOnce, CompiledRows
from headrace.server.batch.transport import Frames, MakeFrames
from headrace.server.cache.gather import (
    BlockRows,
    Projection,
    Rows,
    gather_spans,
    refuse_large,
    spans,
)
from headrace.server.cache.memory.arena import Memory
from headrace.server.kernels.loader import KERNELS, Loader
from headrace.server.layout.block_layout import Field
from headrace.server.layout.wire_columns import WireColumn
from headrace.v1 import shard_service_pb2 as pb

# What a row takes besides itself while a batch is gathered: ids, places, and the spans of a column.
_ROW_BYTES = 64
# Less is claimed together with the payload.
_WORTH_CLAIMING_BYTES = 1 << 20
_SPAN_BYTES = 48

_Spans = dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]


class Assembler:
    """Assembles the batches of one stream, one after another.

    Not safe for several threads.

    Args:
        columns: The columns in the order wanted, the server's own included.
        projection: The dataset's among them.
        max_batch_bytes: Greatest payload.
        frames: Says where each batch goes.
        kernels: The compiled functions, as soon as they are there.
        claim: Is told how much memory a batch takes while it is made, before it takes it.
    """

    def __init__(
        self,
        columns: Sequence[WireColumn],
        projection: Projection,
        *,
        max_batch_bytes: int,
        frames: MakeFrames,
        kernels: Loader = KERNELS,
        claim: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._claim = claim
        self._columns = tuple(columns)
        self._projection = projection
        self._max_batch_bytes = max_batch_bytes
        self._frames = frames
        self._kernels = kernels
        self._at_once = AtOnce(self._columns, projection)
        row_bytes = projection.layout.parts[0].row_bytes
        ragged = sum(not entry.column.is_tensor for entry in projection.fields)
        self._row_bytes = row_bytes + _ROW_BYTES + _SPAN_BYTES * ragged
        self._packed = np.empty(0, np.uint8)
        self._last_layout: tuple[tuple[int, tuple[int, ...]], PayloadLayout] | None = None

    def assemble(
        self,
        rows: Rows,
        sample_ids: NDArray[np.int64],
        header: pb.BatchHeader,
        *,
        beside: int = 0,
    ) -> list[bytes]:
        """Assemble the messages of one batch.

        Args:
            rows: Its samples.
            sample_ids: ``(samples,) int64``: their ids; or ``(samples, 2)`` in mixtures.
            header: Its head; the fields about the payload are filled in.
            beside: Memory that the samples take where they lie now.

        Raises:
            BadArgumentError: The payload would pass the limit.
        """
        kernels = self._kernels.module
        beside += self._row_bytes * len(sample_ids)
        if beside > _WORTH_CLAIMING_BYTES:
            self._claim(beside)
        if kernels is not None and isinstance(rows, BlockRows):
            measured = self._at_once.measure(kernels, rows)
            layout = measured.layout(0)
            frames = self._begin(layout, header, beside)
            pieces = frames.pieces(0, layout.size)
            if len(pieces) == 1:
                target = (pieces[0].ctypes.data, layout.size, 0, 0)
                self._at_once.write(
                    kernels,
                    rows,
                    sample_ids,
                    measured,
                    heads=b"",
                    targets=np.array([target], np.int64),
                )
                return frames.finish()
            rows = CompiledRows(kernels, rows)
            packed = self._gather_packed(rows, len(sample_ids))
            ragged = self._spans(packed)
        else:
            packed = self._gather_packed(rows, len(sample_ids))
            ragged = self._spans(packed)
            sizes = tuple(int(lengths.sum()) for _, lengths in ragged.values())
            layout = self._layout(len(sample_ids), sizes)
            frames = self._begin(layout, header, beside)
        self._write(rows, packed, ragged, sample_ids, buffers_of(layout, frames))
        return frames.finish()

    def _begin(self, layout: PayloadLayout, header: pb.BatchHeader, beside: int) -> Frames:
        refuse_large(layout.size, self._max_batch_bytes)
        # A column may be gathered elsewhere before it is copied to where it goes.
        self._claim(beside + 2 * layout.size)
        return self._frames(header, layout)

    def _spans(self, packed: NDArray[np.uint8]) -> _Spans:
        return {
            entry.column.name: spans(packed, entry)
            for entry in self._projection.fields
            if not entry.column.is_tensor
        }

    def _write(
        self,
        rows: Rows,
        packed: NDArray[np.uint8],
        ragged: _Spans,
        sample_ids: NDArray[np.int64],
        buffers: Iterator[Pieces],
    ) -> None:
        # Staged rows join their pieces here, once.
        memory = rows.memory if ragged else None
        for column in self._columns:
            if column.name == SAMPLE_ID_COLUMN:
                write(next(buffers), sample_ids.reshape(-1).view(np.uint8))
                continue
            entry = self._projection.layout.by_name[column.name]
            if entry.valid_offset >= 0:
                write(next(buffers), packed[:, entry.valid_offset])
            if memory is None or column.is_tensor:
                _tensor(entry, rows, packed, next(buffers))
            else:
                begins, lengths = ragged[column.name]
                edges = _edges(lengths)
                write(next(buffers), (edges // column.dtype.itemsize).view(np.uint8))
                _ragged(
                    memory,
                    begins,
                    lengths,
                    next(buffers),
                    edges=edges,
                    kernels=self._kernels.module,
                )

    def _layout(self, count: int, ragged_bytes: tuple[int, ...]) -> PayloadLayout:
        # All batches of a stream but the last have one size, so without ragged columns one layout.
        if self._last_layout is None or self._last_layout[0] != (count, ragged_bytes):
            layout = layout_of(self._columns, count, ragged_bytes)
            self._last_layout = ((count, ragged_bytes), layout)
        return self._last_layout[1]

    def _gather_packed(self, rows: Rows, count: int) -> NDArray[np.uint8]:
        row_bytes = self._projection.layout.parts[0].row_bytes
        if self._packed.size < count * row_bytes:
            self._packed = np.empty(count * row_bytes, np.uint8)
        packed = self._packed[: count * row_bytes].reshape(count, row_bytes)
        if self._projection.packed:
            rows.packed(packed)
        return packed


def buffers_of(layout: PayloadLayout, frames: Frames) -> Iterator[Pieces]:
    """Yield where each buffer goes, with zeros in the gap before: equal requests, equal bytes."""
    end = 0
    for begin, length in zip(layout.begins, layout.lengths, strict=True):
        if end < begin:
            for gap in frames.pieces(end, begin):
                gap[:] = 0
        end = begin + length
        yield frames.pieces(begin, end)


def write(pieces: Pieces, content: NDArray[np.uint8]) -> None:
    """Copy what one buffer holds to where it goes."""
    begin = 0
    for piece in pieces:
        piece[:] = content[begin : begin + piece.size]
        begin += piece.size


def _tensor(entry: Field, rows: Rows, packed: NDArray[np.uint8], out: Pieces) -> None:
    """Gather a column of fixed size."""
    column, count = entry.column, packed.shape[0]
    if entry.part:
        _wide(entry, rows, out, count)
    elif len(out) == 1:
        _narrow(entry, packed, out[0])
    else:
        whole = np.empty(count * column.item_bytes, np.uint8)
        _narrow(entry, packed, whole)
        write(out, whole)


def _narrow(entry: Field, packed: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    dtype = entry.column.dtype
    if not entry.column.item_shape:
        # Tables have many of these; a packed row begins and ends at multiples of any item.
        np.copyto(out.view(dtype), packed.view(dtype)[:, entry.offset // dtype.itemsize])
        return
    target = out.reshape(packed.shape[0], entry.column.item_bytes)
    source = packed[:, entry.offset : entry.offset + target.shape[1]]
    np.copyto(target.view(dtype), source.view(dtype))


def _wide(entry: Field, rows: Rows, out: Pieces, count: int) -> None:
    """Gather rows that have a part of their own; one that lies in two messages is cut."""
    item_bytes = entry.column.item_bytes
    if len(out) == 1:
        rows.wide(entry.part, out[0].reshape(count, item_bytes))
        return
    if (
        isinstance(out, PartPieces)
        and isinstance(rows, CompiledRows)
        and out.copy_spans(rows.memory.array, *rows.spans(entry.part))
    ):
        return
    row = cut = 0
    single = np.empty((1, item_bytes), np.uint8)
    for piece in out:
        left = piece
        if cut:
            # What of the row before did not fit the message before.
            left[: item_bytes - cut] = single[0, cut : cut + left.size]
            cut, left = cut + left.size, left[item_bytes - cut :]
            if cut < item_bytes:
                continue
        whole = left.size // item_bytes
        if whole:
            target = left[: whole * item_bytes].reshape(whole, item_bytes)
            rows.wide(entry.part, target, first=row)
        row, left = row + whole, left[whole * item_bytes :]
        cut = left.size
        if cut:
            rows.wide(entry.part, single, first=row)
            left[:] = single[0, :cut]
            row += 1


def _edges(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each row begins, and the last ends, in bytes."""
    edges = np.empty(len(lengths) + 1, np.int64)
    edges[0] = 0
    np.cumsum(lengths, out=edges[1:])
    return edges


def _ragged(
    memory: Memory,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: Pieces,
    *,
    edges: NDArray[np.int64],
    kernels: ModuleType | None,
) -> None:
    """Gather spans back to back; one that lies in two messages is cut."""
    if len(out) == 1:
        gather_spans(memory, begins, lengths, out[0], kernels=kernels)
        return
    if (
        kernels is not None
        and isinstance(out, PartPieces)
        and out.copy_spans(memory.array, begins, lengths)
    ):
        return
    at = 0
    for piece in out:
        end = at + piece.size
        first, last = np.searchsorted(edges, (at, end), side="right").tolist()
        # The spans that begin, or go on, in this message.
        own = slice(first - 1, min(last, len(begins)))
        front = np.maximum(at - edges[:-1][own], 0)
        back = np.minimum(edges[1:][own], end) - edges[:-1][own]
        gather_spans(memory, begins[own] + front, back - front, piece, kernels=kernels)
        at = end
