"""Write batches of packed rows by compiled loops, from documents in pinned blocks.

Contract:

1. Before anything is written, the length of each document is compared with the length that its row
   was packed with. A mismatch is an error that names the sample.
2. If labels are requested, each token that becomes one must fit into it; a larger token is an error
   that names its sample.
3. Places of a row without a document are filled; each run of them is a segment.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InternalError
from headrace.payload import OFFSET_BYTES, SAMPLE_ID_COLUMN
from headrace.server.batch.batch_writer import ROW_BYTES, SPAN_BYTES, Measured, Read
from headrace.server.batch.compiled_writer import hash_short, placed
from headrace.server.batch.packed_checks import (
    NO_PIECES,
    Title,
    check_labels,
    check_lengths,
    has_labels,
    has_wide_tokens,
)
from headrace.server.batch.payload_out import write_whole
from headrace.server.batch.targets import Target
from headrace.server.batch.titles import sample_title
from headrace.server.cache.gather import BlockRows
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import BlockLayout, Projection
from headrace.server.layout.packed_columns import PackedColumns
from headrace.server.layout.wire_columns import WireColumn

_IDS, _ELEMENTS, _LABELS, _POSITIONS, _DOCUMENTS = range(5)
_BOUNDARY_OFFSETS, _BOUNDARIES, _SAMPLE_OFFSETS, _SAMPLES = range(5, 9)
_INT32_BYTES = 4
_INT64_BYTES = 8
_TABLES = "the tables of the cache point outside of it; restart the server"

# What a buffer holds, its source, and its bytes: for each row, for each segment, and in addition.
_Buffer = tuple[int, int, int, int, int]


class CompiledRows:
    """Writes the batches of one stream of rows.

    Args:
        columns: The columns in the requested order, including the server's own.
        projection: The dataset's columns that they are made of, including the one of documents.
        packed: The columns of rows.
        title: Names a document in errors, given the id that it is read by, such as ``sample 7``.
    """

    def __init__(
        self,
        columns: Sequence[WireColumn],
        projection: Projection,
        packed: PackedColumns,
        *,
        title: Title = str,
    ) -> None:
        self.projection = projection
        self._packed = packed
        self._row_bytes = projection.layout.parts[0].row_bytes
        by_name = {entry.column.name: entry for entry in projection.fields}
        self._fields = [by_name[each.name] for each in packed.sources if each.name in by_name]
        names = [entry.column.name for entry in self._fields]
        ragged = [(entry.offset, entry.column.dtype.itemsize, 0) for entry in self._fields]
        self._ragged = np.array(ragged, np.int64)
        # Marks and filling are tokens in the column of documents, and 0 in the other sources.
        marks = [-1 if mark is None else mark for mark in (packed.bos, packed.eos)]
        sources = [
            (
                entry.column.dtype.itemsize,
                int(entry.column.dtype.kind == "i"),
                *(marks if entry is self._fields[0] else [min(mark, 0) for mark in marks]),
                packed.fill if entry is self._fields[0] else 0,
            )
            for entry in self._fields
        ]
        self._sources = np.array(sources, np.int64)
        buffers = [each for column in columns for each in _buffers_of(column, packed, names)]
        self._made = np.array([each[:2] for each in buffers], np.int64)
        self._buffers = np.array([each[2:] for each in buffers], np.int64)
        self.row_bytes = self._row_bytes + ROW_BYTES + SPAN_BYTES * len(self._fields)
        self._spans = np.empty((len(self._fields), 3, 0), np.int64)
        self._checks_labels = has_labels(packed, columns) and has_wide_tokens(
            packed, packed.sources[0]
        )
        self._title = title
        self._places = NO_PIECES

    def measure(self, rows: BlockRows, read: Read, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows.

        Args:
            rows: The documents of the pieces, batch after batch.
            read: Which documents they are, and their pieces.
            batch_count: Number of batches.

        Raises:
            StageFailedError: A document does not have the length that it was packed with, or labels
                cannot hold one of its tokens.
            InternalError: The tables of the cache point outside it.
        """
        pieces = read.pieces
        assert pieces is not None
        self._places = pieces
        self._find(rows, self._places.sample_ids.size)
        starts, lengths = np.empty((2, batch_count, len(self._buffers)), np.int64)
        if not LOOPS.measure_rows(
            *self._tables(), self._packed.marks, self._buffers, starts, lengths
        ):
            for entry, found in zip(self._fields, self._spans[:, 1, :-1], strict=True):
                check_lengths(
                    self._places,
                    entry.column,
                    found,
                    marks=self._packed.marks,
                    title=partial(self._piece_title, read),
                )
            raise InternalError(_TABLES)
        if self._checks_labels:
            memory = rows.memory
            if not LOOPS.fit_labels(*self._tables(), memory.array):
                own = self._spans[0, 0, :-1]
                title = partial(self._piece_title, read)
                check_labels(self._places, self._packed, own, memory, title=title)
                raise InternalError(_TABLES)
        sizes = (starts[:, -1] + lengths[:, -1]).tolist()
        return Measured(starts, lengths, list(map(tuple, lengths.tolist())), sizes)

    def write(
        self,
        rows: BlockRows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, with their headers and hashes."""
        if (parts := targets[0][-1]) is not None:
            # A single batch, because batches that are made together fit in one message each.
            write_whole(parts, measured.sizes[0], partial(self.write, rows, sample_ids, measured))
            return
        heads, table, short = placed(targets, measured.sizes)
        if not LOOPS.write_rows(
            *self._tables(),
            rows.memory.array,
            self._places.sample_ids,
            self._made,
            measured.starts,
            measured.lengths,
            np.ascontiguousarray(sample_ids).reshape(-1).view(np.uint8),
            heads,
            table,
        ):
            raise InternalError(_TABLES)
        if short:
            hash_short(short)

    def _piece_title(self, read: Read, piece: int) -> str:
        return self._title(int(read.sample_ids[piece]))

    def _tables(self) -> tuple[object, ...]:
        places = self._places
        return places.counts, places.table, self._packed.length, self._spans, self._sources

    def _find(self, rows: BlockRows, count: int) -> None:
        """Find the documents in memory."""
        if self._spans.shape[2] != count + 1:
            self._spans = np.empty((len(self._fields), 3, count + 1), np.int64)
        if not LOOPS.find_ragged(
            rows.memory.array,
            rows.slot_of,
            rows.bases,
            rows.blocks,
            rows.offsets,
            self._row_bytes,
            self._ragged,
            self._spans,
        ):
            raise InternalError(_TABLES)


def rows_writer(
    columns: Sequence[WireColumn],
    packed: PackedColumns,
    shown: Callable[[NDArray[np.int64]], NDArray[np.int64]],
) -> Callable[[BlockLayout], CompiledRows]:
    """Return what makes the writer of a stream of rows, for blocks of a layout.

    Args:
        columns: The columns of its batches, including the server's own.
        packed: The columns of rows.
        shown: Returns ids of documents as errors show them.
    """
    wanted = {column.name for column in columns}
    # The documents are always read, because their lengths are needed.
    first, *alike = (source.name for source in packed.sources)
    names = [first, *(name for name in alike if name in wanted)]

    def writer(layout: BlockLayout) -> CompiledRows:
        return CompiledRows(
            columns,
            layout.projection(names),
            packed,
            title=lambda sample_id: sample_title(shown(np.array([sample_id]))),
        )

    return writer


def _buffers_of(
    column: WireColumn, packed: PackedColumns, sources: Sequence[str]
) -> Iterator[_Buffer]:
    """Yield the buffers of a column."""
    if column.name == SAMPLE_ID_COLUMN:
        yield _IDS, 0, column.item_bytes, 0, 0
    elif column.name in sources:
        yield _ELEMENTS, sources.index(column.name), column.item_bytes, 0, 0
    elif column.is_tensor:
        part = column.name.removeprefix(f"{packed.name}.")
        yield _CELLS[part], 0, column.item_bytes, 0, 0
    elif column.name.endswith(".samples"):
        yield _SAMPLE_OFFSETS, 0, OFFSET_BYTES, 0, OFFSET_BYTES
        yield _SAMPLES, 0, 0, _INT64_BYTES, 0
    else:
        yield _BOUNDARY_OFFSETS, 0, OFFSET_BYTES, 0, OFFSET_BYTES
        yield _BOUNDARIES, 0, _INT32_BYTES, _INT32_BYTES, 0


_CELLS = {"labels": _LABELS, "positions": _POSITIONS, "documents": _DOCUMENTS}
