"""Pack the documents of one group, differently in each epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.hash import draw
from headrace.order.packing.best_fit import Fit, Placement, best_fit
from headrace.order.packing.options import Packing

_Array = NDArray[np.int64]

# Spare rows, so that most packings with jitter fit: one, and one more for each 256 rows.
_RESERVE_SHIFT: Final = 8
# Logarithms have 16 bits after the binary point; this is the one of e.
_POINT_BITS: Final = 16
_LOG2_E: Final = 94548
_PLACE_BITS: Final = 32
_MOST_SORTED: Final = 1 << 30
_HALF_WORD: Final = np.uint64(32)


@dataclass(frozen=True, slots=True, eq=False)
class PackedGroup:
    """The rows of a group.

    Attributes:
        starts: ``(rows + 1,) int64``: the first piece of each row, and the end of the last row.
        pieces: ``(pieces, 5) int32``, row by row: the document, counted from the group's first;
            the start of the piece in it; elements of the piece; elements of the document, marks
            included; the start of the piece in its row.
        memory: Address and length of each array, for compiled loops.
    """

    starts: _Array
    pieces: NDArray[np.int32]
    memory: tuple[int, int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        starts, pieces = self.starts, self.pieces
        memory = (starts.ctypes.data, len(starts), pieces.ctypes.data, len(pieces))
        object.__setattr__(self, "memory", memory)

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.starts) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of both arrays."""
        return self.starts.nbytes + self.pieces.nbytes


def group_row_count(lengths: _Array, packing: Packing, *, fit: Fit = best_fit) -> int:
    """Return how many rows a group has in every epoch, spare rows included.

    Args:
        lengths: ``(documents,) int64``: elements of each document, without marks.
        packing: How the documents are packed.
        fit: `best_fit`, or a faster equivalent.
    """
    lengths = _marked(lengths, packing)
    whole, rests = np.divmod(lengths, packing.length)
    fitted = _fitted(rests, lengths, _plain_order(rests), packing, fit, most=len(rests))
    assert fitted is not None
    count = fitted.row_count
    if count:
        count = min(count + 1 + (count >> _RESERVE_SHIFT), len(fitted.pieces))
    return int(whole.sum()) + count


def pack_group(
    lengths: _Array,
    packing: Packing,
    *,
    first_id: int,
    key: int,
    row_count: int,
    fit: Fit = best_fit,
) -> PackedGroup:
    """Pack the documents of a group.

    Args:
        lengths: ``(documents,) int64``: elements of each document, without marks.
        packing: How the documents are packed.
        first_id: Sample id of the first document.
        key: The key of the epoch.
        row_count: What `group_row_count` returned.
        fit: `best_fit`, or a faster equivalent.

    Raises:
        BadArgumentError: The row count does not belong to these lengths.
    """
    lengths = _marked(lengths, packing)
    whole, rests = np.divmod(lengths, packing.length)
    whole_count = int(whole.sum())
    wanted = row_count - whole_count
    jittered = _placing_order(rests, np.arange(first_id, first_id + len(lengths)), key)
    for order in (jittered, _plain_order(rests)):
        fitted = _fitted(rests, lengths, order, packing, fit, most=wanted)
        if fitted is not None and len(fitted.pieces) >= wanted:
            break
    else:
        raise BadArgumentError(
            f"a group of {len(lengths)} documents should have {row_count} rows, but their lengths "
            "give another number",
            field="row_count",
        )
    pieces = _filled(fitted, wanted)
    pieces[:, 0] += whole_count
    return _rows_of(
        np.concatenate([_whole_rows(whole, packing.length), pieces]), lengths, row_count
    )


def _marked(lengths: _Array, packing: Packing) -> _Array:
    return lengths + packing.marks if packing.marks else lengths


def _plain_order(rests: _Array) -> _Array:
    """Return documents by falling length; equal ones stay in their order."""
    return _falling(rests)


def _placing_order(rests: _Array, sample_ids: _Array, key: int) -> _Array:
    """Return documents by falling log(length) + u, with u in [0, 1) drawn for each."""
    exponents = np.frexp(rests.astype(np.float64))[1].astype(np.int64) - 1
    # log2, linear between powers of two.
    logs = (exponents << _POINT_BITS) + ((rests << _POINT_BITS) >> np.maximum(exponents, 0))
    logs -= 1 << _POINT_BITS
    jitters = draw(key, sample_ids.astype(np.uint64)) >> _HALF_WORD
    logs += ((jitters * np.uint64(_LOG2_E)) >> _HALF_WORD).astype(np.int64)
    return _falling(logs)


def _falling(numbers: _Array) -> _Array:
    # Sorting words that hold number and place takes a tenth of the time of an argsort.
    words = (_MOST_SORTED - numbers) << _PLACE_BITS
    words |= np.arange(len(numbers))
    words.sort()
    words &= (1 << _PLACE_BITS) - 1
    return words


def _fitted(
    rests: _Array, lengths: _Array, order: _Array, packing: Packing, fit: Fit, *, most: int
) -> Placement | None:
    order = order[rests[order] > 0]
    sizes = rests[order]
    return fit(order, lengths[order] - sizes, sizes, (packing.length, packing.cut, most))


def _filled(fitted: Placement, wanted: int) -> _Array:
    """Add rows until there are `wanted`: each takes every second piece of the row with the most.

    Among rows with equally many pieces, the first is taken.
    """
    pieces = fitted.pieces
    if fitted.row_count == wanted:
        return pieces
    rows = pieces[:, 0].copy()
    counts = np.bincount(rows, minlength=wanted)
    for spare in range(fitted.row_count, wanted):
        donor = int(counts.argmax())
        moved = np.flatnonzero(rows == donor)[1::2]
        rows[moved] = spare
        counts[donor] -= len(moved)
        counts[spare] = len(moved)
    filled = pieces.copy()
    filled[:, 0] = rows
    return filled


def _whole_rows(whole: _Array, length: int) -> _Array:
    """Return the pieces that fill a whole row each, document by document."""
    documents = np.repeat(np.arange(len(whole)), whole)
    firsts = np.cumsum(whole) - whole
    numbers = np.arange(len(documents))
    starts = (numbers - firsts[documents]) * length
    return np.column_stack([numbers, documents, starts, np.full_like(numbers, length)])


def _rows_of(pieces: _Array, lengths: _Array, row_count: int) -> PackedGroup:
    pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
    starts = np.zeros(row_count + 1, np.int64)
    np.cumsum(np.bincount(pieces[:, 0], minlength=row_count), out=starts[1:])
    ends = np.cumsum(pieces[:, 3])
    before = ends - pieces[:, 3]
    table = np.empty((len(pieces), 5), np.int32)
    table[:, :3], table[:, 3] = pieces[:, 1:], lengths[pieces[:, 1]]
    table[:, 4] = before - before[starts[:-1]][pieces[:, 0]]
    return PackedGroup(starts, table)
