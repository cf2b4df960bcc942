"""Write batches of packed rows with NumPy alone: what the compiled writer is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.order import Pieces
from headrace.payload import SAMPLE_ID_COLUMN, layout_of
from headrace.server.batch.batch_writer import Measured, Read
from headrace.server.batch.packed_checks import (
    NO_PIECES,
    check_labels,
    check_lengths,
    has_labels,
    has_wide_tokens,
)
from headrace.server.batch.payload_out import PayloadOut, payload_out
from headrace.server.batch.targets import Target
from headrace.server.cache.gather import Rows, spans
from headrace.server.cache.memory.arena import Memory
from headrace.server.layout.block_layout import Projection
from headrace.server.layout.packed_columns import IGNORED_LABEL, PackedColumns
from headrace.server.layout.wire_columns import WireColumn
from support.plain_writer import measured_of

_INT64_BYTES = 8
_INT32_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Copies:
    """The parts of documents to copy, in bytes.

    Attributes:
        starts: ``(pieces,) int64``: where each part starts in memory.
        lengths: ``(pieces,) int64``: bytes of each part.
        places: ``(pieces,) int64``: where each part goes, counted from the first row.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    places: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Segments:
    """The segments of rows, end to end: pieces of documents, and filling.

    Attributes:
        first: The number of the first row's first element among all written rows.
        pieces: The pieces in these rows.
        places: ``(pieces,) int64``: where each piece lies, counted from the first written row.
        starts: ``(segments,) int64``: where each segment starts, in elements from the first row.
        lengths: ``(segments,) int64``: elements of each segment.
        owners: ``(segments,) int64``: the piece of each segment, or -1 for filling.
        edges: ``(rows + 1,) int64``: the first segment of each row, and the end of the last.
    """

    first: int
    pieces: slice
    places: NDArray[np.int64]
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    owners: NDArray[np.int64]
    edges: NDArray[np.int64]

    @property
    def filled(self) -> list[tuple[int, int]]:
        """Return where each filled segment starts and ends."""
        own = np.flatnonzero(self.owners < 0)
        starts = self.starts[own]
        return list(zip(starts.tolist(), (starts + self.lengths[own]).tolist(), strict=True))

    def of_rows(self, first: int, stop: int, pieces: slice, length: int) -> _Segments:
        """Return the segments of a range of rows, counted from its first row."""
        low, high = int(self.edges[first]), int(self.edges[stop])
        return _Segments(
            first * length,
            pieces,
            self.places,
            self.starts[low:high] - first * length,
            self.lengths[low:high],
            self.owners[low:high],
            self.edges[first : stop + 1] - low,
        )


class ReadSamples(NamedTuple):
    """The samples that were read for batches; see `headrace.server.batch.batch_writer.Read`."""

    sample_ids: NDArray[np.int64]
    pieces: Pieces | None = None

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the samples, as if each were an item."""
        return self.sample_ids


class PlainRowWriter:
    """Writes the batches of one stream of rows, as `CompiledRows` does.

    Args:
        columns: The columns in the requested order, including the server's own.
        projection: The dataset's columns that they are made of.
        packed: The columns of rows.
    """

    def __init__(
        self,
        columns: Sequence[WireColumn],
        projection: Projection,
        packed: PackedColumns,
    ) -> None:
        self._columns = tuple(columns)
        self._projection = projection
        self._packed = packed
        self._row_bytes = projection.layout.parts[0].row_bytes
        self._has_labels = has_labels(packed, columns)
        self._places = NO_PIECES
        self._segments = _segments(self._places, packed.length)
        self._copies: dict[str, _Copies] = {}

    def measure(self, rows: Rows, read: Read, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows.

        Args:
            rows: The documents of the pieces, batch after batch.
            read: Which documents they are, and their pieces.
            batch_count: Number of batches.

        Raises:
            StageFailedError: A document does not have the length that it was packed with, or labels
                cannot hold one of its tokens.
        """
        assert read.pieces is not None
        self._places, sample_ids = read.pieces, read.sample_ids
        self._segments = _segments(self._places, self._packed.length)

        def title(piece: int) -> str:
            return str(sample_ids[piece])

        packed = np.empty((sample_ids.size, self._row_bytes), np.uint8)
        rows.packed(packed)
        for entry in self._projection.fields:
            starts, lengths = spans(packed, entry)
            check_lengths(
                self._places,
                entry.column,
                lengths,
                marks=self._packed.marks,
                title=title,
            )
            self._copies[entry.column.name] = self._copies_of(entry.column, starts)
            if self._has_labels and has_wide_tokens(self._packed, entry.column):
                check_labels(
                    self._places,
                    self._packed,
                    starts,
                    rows.memory,
                    title=title,
                )
        count = len(self._places.counts) // batch_count
        edges = self._segments.edges[::count] if count else np.zeros(batch_count + 1, np.int64)
        segment_counts = np.diff(edges).tolist()
        layouts = [
            layout_of(self._columns, count, list(self._ragged_bytes(count, segments)))
            for segments in segment_counts
        ]
        return measured_of(layouts)

    def write(
        self,
        rows: Rows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, with their headers and hashes.

        Args:
            rows: The rows that were measured.
            sample_ids: ``(rows,) int64``: ids of rows; ``(rows, 2)`` in mixtures.
            measured: The result of `measure`.
            targets: Where to write each batch; every byte of its payload is written.

        Raises:
            InternalError: The tables of the cache point outside it.
        """
        memory = rows.memory
        count = len(self._places.counts) // len(targets)
        ends = [0, *np.cumsum(self._places.counts)[count - 1 :: count].tolist()] if count else []
        for batch, target in enumerate(targets):
            own = slice(batch * count, (batch + 1) * count)
            pieces = slice(*ends[batch : batch + 2]) if count else slice(0, 0)
            segments = self._segments.of_rows(own.start, own.stop, pieces, self._packed.length)
            out = payload_out(target)
            self._write(memory, segments, sample_ids[own], out, measured.starts[batch].tolist())
            out.end()

    def _write(
        self,
        memory: Memory,
        segments: _Segments,
        ids: NDArray[np.int64],
        out: PayloadOut,
        starts: list[int],
    ) -> None:
        size, places = (len(segments.edges) - 1) * self._packed.length, iter(starts)
        main = self._packed.sources[0]
        # The labels need its elements too.
        documents = np.empty(size, main.dtype)
        if self._has_labels:
            self._assemble(memory, main, segments, documents.view(np.uint8))
        for column in self._columns:
            at = next(places)
            if column.name == SAMPLE_ID_COLUMN:
                out.put(at, np.ascontiguousarray(ids).reshape(-1).view(np.uint8))
            elif column.name == main.name and self._has_labels:
                out.put(at, documents.view(np.uint8))
            elif column.name in self._copies:
                source = self._projection.layout.by_name[column.name].column
                place = out.take(at, size * source.dtype.itemsize)
                self._assemble(memory, source, segments, place)
            else:
                for part, made in enumerate(self._made(column, segments, documents)):
                    out.put(at if part == 0 else next(places), made.view(np.uint8))

    def _assemble(
        self, memory: Memory, source: WireColumn, segments: _Segments, out: NDArray[np.uint8]
    ) -> None:
        """Write the rows of one source."""
        copies = self._copies[source.name]
        own, item, marks = segments.pieces, source.dtype.itemsize, self._packed
        places = copies.places[own] - segments.first * item
        self._copy(memory, copies.starts[own], copies.lengths[own], places, out)
        is_main = source.name == marks.name
        elements = out.view(source.dtype)
        if marks.marks:
            starts, sizes, totals, _ = self._places.table[own].T
            at = self._segments.places[own] - segments.first
            if marks.bos is not None:
                elements[at[starts == 0]] = marks.bos if is_main else 0
            if marks.eos is not None:
                is_last = starts + sizes == totals
                elements[(at + sizes - 1)[is_last]] = marks.eos if is_main else 0
        fill = marks.fill if is_main else 0
        for start, end in segments.filled:
            elements[start:end] = fill

    def _copies_of(self, source: WireColumn, where: NDArray[np.int64]) -> _Copies:
        """Return the copies to make of each document, for all rows."""
        starts, sizes, totals, _ = self._places.table.T
        places, item = self._segments.places, source.dtype.itemsize
        if self._packed.bos is not None:
            is_first = starts == 0
            sizes, places = sizes - is_first, places + is_first
            starts = starts - ~is_first
        if self._packed.eos is not None:
            table = self._places.table
            sizes = sizes - (table[:, 0] + table[:, 1] == totals)
        return _Copies(where + starts * item, sizes * item, places * item)

    def _copy(
        self,
        memory: Memory,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        places: NDArray[np.int64],
        out: NDArray[np.uint8],
    ) -> None:
        for start, length, place in zip(
            starts.tolist(), lengths.tolist(), places.tolist(), strict=True
        ):
            out[place : place + length] = memory.array[start : start + length]

    def _made(
        self, column: WireColumn, segments: _Segments, documents: NDArray[np.generic]
    ) -> Iterator[NDArray[np.generic]]:
        """Yield the buffers of a column that describes where documents lie."""
        starts, lengths, owners = segments.starts, segments.lengths, segments.owners
        part = column.name.removeprefix(f"{self._packed.name}.")
        firsts, counts = segments.edges[:-1], np.diff(segments.edges)
        if part == "labels":
            yield _labels(documents, segments)
        elif part == "positions":
            positions = np.arange(documents.size, dtype=np.int32)
            positions -= np.repeat(starts.astype(np.int32), lengths)
            yield positions
        elif part == "documents":
            numbers = np.arange(owners.size) - np.repeat(firsts, counts)
            numbers[owners < 0] = -1
            yield np.repeat(numbers.astype(np.int32), lengths)
        elif part == "samples":
            yield segments.edges
            found = np.full(owners.size, -1, np.int64)
            found[owners >= 0] = self._places.sample_ids[owners[owners >= 0]]
            yield found
        else:
            yield segments.edges + np.arange(segments.edges.size)
            rows = np.repeat(np.arange(counts.size), counts)
            edges = np.zeros(owners.size + counts.size, np.int32)
            edges[np.arange(owners.size) + rows + 1] = starts + lengths - rows * self._packed.length
            yield edges

    def _ragged_bytes(self, row_count: int, segment_count: int) -> Iterator[int]:
        for column in self._columns:
            if not column.is_tensor:
                is_samples = column.name.endswith(".samples")
                yield (
                    segment_count * _INT64_BYTES
                    if is_samples
                    else (segment_count + row_count) * _INT32_BYTES
                )


def _segments(places: Pieces, length: int) -> _Segments:
    """Return the segments of rows: pieces in order, and the filling between them."""
    row_count, count = places.counts.size, places.sample_ids.size
    rows = np.repeat(np.arange(row_count), places.counts)
    piece_places = starts = rows * length + places.table[:, 3]
    # The starts and ends of pieces and the ends of rows, in order.
    edges = np.zeros(2 * count + row_count + 1, np.int64)
    at = 2 * np.arange(count) + rows + 1
    edges[at], edges[at + 1] = starts, starts + places.table[:, 1]
    row_ends = 2 * np.cumsum(places.counts) + np.arange(row_count) + 1
    edges[row_ends] = (np.arange(row_count) + 1) * length
    owners = np.full(edges.size, -1, np.int64)
    owners[at] = np.arange(count)
    lengths = np.diff(edges)
    is_segment = lengths > 0
    starts, lengths, owners = edges[:-1][is_segment], lengths[is_segment], owners[:-1][is_segment]
    firsts = np.searchsorted(starts, np.arange(row_count + 1) * length)
    return _Segments(0, slice(0, count), piece_places, starts, lengths, owners, firsts)


def _labels(documents: NDArray[np.generic], segments: _Segments) -> NDArray[np.int32]:
    """Return the next element in the document for each element: ``(elements,) int32``.

    `check_labels` has checked that int32 can hold them.
    """
    labels = np.empty(documents.size, np.int32)
    np.copyto(labels[:-1], documents[1:], casting="unsafe")
    labels[segments.starts + segments.lengths - 1] = IGNORED_LABEL
    for start, end in segments.filled:
        labels[start:end] = IGNORED_LABEL
    return labels
