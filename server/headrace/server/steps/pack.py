"""Pack the documents of one rank's batch into rows of one length.

Each document, cut to the length, goes into the first row that has room for it, in the order of
the batch. What finds no room is left out and counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.steps.column_steps import (
    Columns,
    Work,
    check_fill,
    check_free,
    check_length,
    int64_column,
    tensor_of,
    wanted_column,
)
from headrace.v1 import shard_service_pb2 as pb

_ROW_LIMIT = 1 << 24
# What places take while they are looked for, as numbers of Python and of NumPy.
_DOCUMENT_BYTES = 512
_ROW_BYTES = 64


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """Where documents went.

    Attributes:
        documents: ``(packed,) int64``: which documents, row by row, in the order in which they lie.
        counts: ``(rows,) int64``: documents of each row.
        begins: ``(packed,) int64``: where each begins in its row.
        left_out: Documents that found no room.
    """

    documents: NDArray[np.int64]
    counts: NDArray[np.int64]
    begins: NDArray[np.int64]
    left_out: int


class Pack:
    """Packs a ragged column into rows of one length."""

    def __init__(self, message: pb.Pack) -> None:
        check_length("pack", message.length)
        if not 1 <= message.row_count < _ROW_LIMIT:
            raise BadArgumentError(
                f"pack: row_count is {message.row_count}; it must be in [1, {_ROW_LIMIT})",
                field="steps",
            )
        self._name = message.column
        self._rows = message.row_count
        self._length = message.length
        self._fill = message.fill

    @property
    def row_count(self) -> int:
        """Return the rows of every batch."""
        return self._rows

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        column = wanted_column(before, self._name, "pack", (pb.COLUMN_KIND_RAGGED,))
        check_fill("pack", column, self._fill)
        made = [
            tensor_of(replace(column, nullable=False), (self._length,)),
            *(
                int64_column(f"{self._name}.{part}", pb.COLUMN_KIND_RAGGED)
                for part in ("boundaries", "sample")
            ),
        ]
        if SAMPLE_ID_COLUMN in before:
            made.append(int64_column(SAMPLE_ID_COLUMN, pb.COLUMN_KIND_RAGGED))
        for each in made[1:3]:
            check_free(before, each.name, "pack")
        return {each.name: each for each in made}

    def cost(self, batch: Batch) -> int:
        rows = self._rows * (self._length * batch.columns[self._name].values.itemsize + _ROW_BYTES)
        return rows + batch.row_count * _DOCUMENT_BYTES

    def run(self, batch: Batch) -> Work[Batch]:
        found = batch.columns[self._name]
        assert found.offsets is not None
        lengths = np.diff(found.offsets)
        kept = np.minimum(lengths, self._length)
        places = yield from _first_fit(kept.tolist(), rows=self._rows, length=self._length)
        documents = places.documents
        rows = np.repeat(np.arange(self._rows), places.counts)
        packed = np.full((self._rows, self._length), self._fill, found.column.dtype)
        copied = zip(
            rows.tolist(),
            places.begins.tolist(),
            found.offsets[documents].tolist(),
            kept[documents].tolist(),
            strict=True,
        )
        for row, begin, source, length in copied:
            packed[row, begin : begin + length] = found.values[source : source + length]
            yield
        columns = self.columns({name: each.column for name, each in batch.columns.items()})
        made = [packed, *self._boundaries(places, kept[documents]), documents]
        values = {self._name: Values(columns[self._name], made[0])}
        offsets = _starts(places.counts)
        boundaries = f"{self._name}.boundaries"
        values[boundaries] = Values(columns[boundaries], made[1], made[2])
        sample = f"{self._name}.sample"
        values[sample] = Values(columns[sample], documents, offsets)
        if SAMPLE_ID_COLUMN in columns:
            ids = batch.columns[SAMPLE_ID_COLUMN].values[documents]
            width = ids.shape[1] if ids.ndim > 1 else 1
            values[SAMPLE_ID_COLUMN] = Values(
                columns[SAMPLE_ID_COLUMN], ids.reshape(-1), offsets * width
            )
        return replace(
            batch,
            columns=values,
            row_count=self._rows,
            overflow_sample_count=places.left_out,
            overflow_element_count=int(lengths.sum() - kept[documents].sum()),
        )

    def _boundaries(
        self, places: _Places, lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where documents begin, row by row, and after them where the last one ends."""
        offsets = _starts(places.counts + 1)
        flat = np.zeros(offsets[-1], np.int64)
        rows = np.repeat(np.arange(self._rows), places.counts)
        first = _starts(places.counts)[rows]
        at = offsets[rows] + np.arange(places.documents.size) - first
        flat[at + 1] = places.begins + lengths
        return flat, offsets


def _first_fit(lengths: list[int], *, rows: int, length: int) -> Work[_Places]:
    room = np.full(rows, length, np.int64)
    found: list[tuple[int, int, int]] = []
    for document, wanted in enumerate(lengths):
        fits = room >= wanted
        row = int(fits.argmax())
        if fits[row]:
            found.append((row, document, length - int(room[row])))
            room[row] -= wanted
        yield
    found.sort()
    table = np.array(found, np.int64).reshape(-1, 3)
    counts = np.bincount(table[:, 0], minlength=rows)
    return _Places(table[:, 1], counts, table[:, 2], len(lengths) - len(found))


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts
