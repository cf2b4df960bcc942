"""Find out during a conversion whether samples are sorted by a column with few values.

A column counts as sorted if it has far fewer stretches of equal values than in a random order. Most
columns are not, and are dropped after the first batch, so that watching costs little.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.converter.sources.pieces import SourcePieces

if TYPE_CHECKING:
    Array = pa.Array[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_MOST_VALUES = 10_000  # with more, batches of any size hold few of each value in any order
_LEAST_SAMPLES = 1000  # with fewer, the order does not matter
_TIMES = 20  # arbitrary: how much longer than in a random order stretches are on average
_ENOUGH = 100  # only more stretches than this can show that a column is not sorted


@dataclass(slots=True)
class _Stretches:
    """Stretches of equal values in one column of one piece."""

    count: int = 0
    first: object = None
    last: object = None
    samples: Counter[object] = field(default_factory=Counter)

    def add(self, column: Array) -> bool:
        """Add the next values; return whether the column may still be sorted."""
        if pa.types.is_date(column.type):  # which may be one that Python cannot represent
            column = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
        # The stubs lack it.
        encoded: Any = pc.call_function("run_end_encode", [column])
        ends = encoded.run_ends.to_numpy()
        if len(ends) > _ENOUGH and len(ends) * _TIMES > len(column):
            return False
        values = encoded.values.to_pylist()
        if not self.count:
            self.first = values[0]
        self.count += len(values) - int(bool(self.count) and values[0] == self.last)
        self.last = values[-1]
        for value, length in zip(values, np.diff(ends, prepend=0).tolist(), strict=True):
            self.samples[value] += length
        is_long = self.count <= _ENOUGH or self.count * _TIMES <= self.samples.total()
        return is_long and len(self.samples) <= _MOST_VALUES


class Sortedness:
    """Watch the samples of a conversion, from several threads with a piece each.

    Args:
        schema: The schema of the samples.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = {field.name for field in schema if _is_of_values(field.type)}
        self._pieces: dict[int, dict[str, _Stretches]] = {}

    def watched(self, pieces: SourcePieces) -> WatchedPieces:
        """Return the same pieces, which are watched as they are read."""
        return WatchedPieces(pieces, self)

    def see(self, piece: int, batch: pa.RecordBatch) -> None:
        """Watch samples of a piece, batch after batch."""
        found = self._pieces.setdefault(piece, {})
        for name in tuple(self._columns):
            if not found.setdefault(name, _Stretches()).add(batch.column(name)):
                self._columns.discard(name)

    def begin(self, piece: int) -> None:
        """Discard the results for a piece, which is read again from the start."""
        self._pieces.pop(piece, None)

    @property
    def advice(self) -> str | None:
        """Return a sentence for the user, or `None` if no column is sorted."""
        counts = {name: self._sorted_values(name) for name in sorted(self._columns)}
        name = max(counts, key=counts.__getitem__, default="")
        if not name or not counts[name]:
            return None
        return (
            f"samples with the same value of {name!r}, which has {counts[name]:,} values, are "
            "stored together: shuffled reading spreads them; for reading in storage order, write "
            "them in random order with shuffle_seed (--shuffle-seed)"
        )

    def _sorted_values(self, name: str) -> int:
        """Return the number of values of a column if it is sorted, else 0."""
        parts = [self._pieces[piece][name] for piece in sorted(self._pieces)]
        parts = [part for part in parts if part.count]
        stretches, samples, last = 0, Counter[object](), None
        for number, part in enumerate(parts):
            stretches += part.count - int(number > 0 and part.first == last)
            last = part.last
            samples.update(part.samples)
        total = samples.total()
        if total < _LEAST_SAMPLES or not 1 < len(samples) <= _MOST_VALUES:
            return 0
        at_random = total - sum(count**2 for count in samples.values()) / total
        return len(samples) if stretches * _TIMES <= at_random else 0


@dataclass(frozen=True, slots=True)
class WatchedPieces:
    """Pieces that are watched as they are read."""

    pieces: SourcePieces
    sortedness: Sortedness

    @property
    def schema(self) -> pa.Schema:
        return self.pieces.schema

    @property
    def count(self) -> int:
        return self.pieces.count

    @property
    def raw_bytes(self) -> int:
        return self.pieces.raw_bytes

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        self.sortedness.begin(piece)
        for batch in self.pieces.read(piece):
            if batch.num_rows:
                self.sortedness.see(piece, batch)
            yield batch


def _is_of_values(kind: pa.DataType) -> bool:
    return (
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )
