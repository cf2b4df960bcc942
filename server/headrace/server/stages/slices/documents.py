"""The documents of packed rows: where their elements go if each of them is rearranged."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from headrace.errors import StageFailedError
from headrace.server.batch.batch_values import Values

_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Documents:
    """The pieces of the rows of a batch.

    Attributes:
        edges: ``(edges,) int64``: for each row 0, and where each of its pieces ends.
        offsets: ``(rows + 1,) int64``: where the edges of each row are.
    """

    edges: _Array
    offsets: _Array

    @classmethod
    def of(cls, boundaries: Values, length: int) -> Self:
        """Return the pieces that a column of boundaries describes.

        Raises:
            StageFailedError: A row does not rise from 0 to the length.
        """
        assert boundaries.offsets is not None
        found = cls(boundaries.values.astype(np.int64), boundaries.offsets)
        firsts, counts = found.offsets[:-1], np.diff(found.offsets)
        if counts.size and counts.min() > 1:
            rises = np.diff(found.edges) > 0
            rises[firsts[1:] - 1] = True
            ends = found.edges[found.offsets[1:] - 1]
            if rises.all() and (found.edges[firsts] == 0).all() and (ends == length).all():
                return found
        elif not counts.size:
            return found
        raise StageFailedError(
            f"slice: column {boundaries.column.name!r} does not have the boundaries of pieces of "
            f"{length} elements in each row; name that of packed rows",
            column=boundaries.column.name,
        )

    @property
    def rows(self) -> _Array:
        """The row of each edge."""
        return np.repeat(np.arange(self.offsets.size - 1), np.diff(self.offsets))

    def edges_to(self, length: int) -> Documents:
        """Return them with a further piece in each row that ends before a length."""
        lasts = self.edges[self.offsets[1:] - 1]
        is_short = lasts < length
        at = self.offsets[1:][is_short]
        edges = np.insert(self.edges, at, length)
        added = np.concatenate([[0], np.cumsum(is_short)])
        return Documents(edges, self.offsets + added)


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """One part of each row.

    Attributes:
        index: ``(elements,) int64``: the element of all rows, one after the other, that it has.
        is_there: ``(elements,) bool``: false for what fills documents up.
        offsets: ``(rows + 1,) int64``: where the elements of each row are.
        edges: Where pieces end in the rearranged rows.
        stretch: ``(rows, 2) int64``: which stretch of those it is.
    """

    index: _Array
    is_there: NDArray[np.bool_]
    offsets: _Array
    edges: Documents
    stretch: _Array

    def boundaries(self, before: Values) -> Values:
        """Return the column of boundaries of the part."""
        return _cut(before, self.edges, [self.stretch])


def rearranged(
    documents: Documents, part: int, parts: int, *, length: int, grows: bool
) -> DocumentPart:
    """Return a part of rows whose documents are rearranged as their zigzags.

    Args:
        documents: The pieces of the rows.
        part: In [0, `parts`).
        parts: Number of parts, >= 2.
        length: Elements of a row.
        grows: Whether documents are filled up to a multiple of two elements a part.

    Raises:
        StageFailedError: The length of a document is not such a multiple, and none grows.
    """
    rows = documents.rows
    is_first = np.zeros(rows.size, np.bool_)
    is_first[documents.offsets[:-1]] = True
    starts = documents.edges[np.flatnonzero(~is_first) - 1]
    row, sizes = rows[~is_first], documents.edges[~is_first] - starts
    steps = -(-sizes // (2 * parts))
    _check(sizes, row, 2 * parts, grows=grows)
    grown = steps * 2 * parts
    # Where each piece and each row begins among the rearranged elements of all rows.
    firsts = np.concatenate([[0], np.cumsum(grown)])
    totals = np.bincount(row, grown, minlength=documents.offsets.size - 1).astype(np.int64)
    row_firsts = np.cumsum(totals) - totals
    own = totals // parts
    offsets = np.concatenate([[0], np.cumsum(own)])
    places = np.arange(offsets[-1]) + np.repeat(row_firsts + part * own - offsets[:-1], own)
    piece = np.searchsorted(firsts, places, side="right") - 1
    step, inside = steps[piece], places - firsts[piece]
    turn, within = np.divmod(inside, np.maximum(step, 1))
    rank, is_tail = np.divmod(turn, 2)
    element = np.where(is_tail, 2 * parts - 1 - rank, rank) * step + within
    is_there = element < sizes[piece]
    index = row[piece] * length + starts[piece] + np.where(is_there, element, 0)
    ends = np.zeros(rows.size, np.int64)
    ends[~is_first] = firsts[1:] - row_firsts[row]
    begin = part * own
    return DocumentPart(
        index,
        is_there,
        offsets,
        Documents(ends, documents.offsets),
        np.stack([begin, begin + own], axis=1),
    )


def cut_edges(before: Values, edges: Documents, stretches: list[tuple[int, int]]) -> Values:
    """Return the column of boundaries of a part that has the same stretches of each row."""
    count = edges.offsets.size - 1
    return _cut(before, edges, [np.tile(np.array([each]), (count, 1)) for each in stretches])


def _cut(before: Values, documents: Documents, stretches: list[_Array]) -> Values:
    """Return the boundaries of stretches, which follow each other."""
    counts, at = np.diff(documents.offsets), np.zeros(documents.offsets.size - 1, np.int64)
    cut = []
    for stretch in stretches:
        low, high = (np.repeat(each, counts) for each in stretch.T)
        cut.append(np.clip(documents.edges, low, high) - low + np.repeat(at, counts))
        at = at + stretch[:, 1] - stretch[:, 0]
    # Those of a row follow each other, stretch by stretch, and each counts once.
    rows = np.concatenate([documents.rows] * len(stretches))
    order = np.argsort(rows, kind="stable")
    edges, rows = np.concatenate(cut)[order], rows[order]
    is_new = np.ones(edges.size, np.bool_)
    is_new[1:] = (np.diff(edges) != 0) | (np.diff(rows) != 0)
    kept = np.bincount(rows[is_new], minlength=counts.size)
    offsets = np.concatenate([[0], np.cumsum(kept)])
    return replace(before, values=edges[is_new].astype(before.values.dtype), offsets=offsets)


def _check(sizes: _Array, row: _Array, unit: int, *, grows: bool) -> None:
    wrong = np.flatnonzero(sizes % unit)
    if grows or not wrong.size:
        return
    first = int(wrong[0])
    raise StageFailedError(
        f"slice: row {row[first]} has a document, or padding, of {sizes[first]} elements, which is "
        f"not a multiple of {unit}; say what to fill documents up with",
        row=int(row[first]),
    )
