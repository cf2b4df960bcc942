"""Take the pieces of rows from the groups that they are of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order.packing.group import PackedGroup

_Array = NDArray[np.int64]


class Pieces(NamedTuple):
    """The documents of some rows, row after row.

    Attributes:
        counts: ``(rows,) int64``: pieces of each row.
        sample_ids: ``(pieces,) int64``: the document of each.
        table: ``(pieces, 4) int64``: where the piece begins in its document, its elements, the
            document's elements, marks included, and where the piece lies in its row.
    """

    counts: _Array
    sample_ids: _Array
    table: _Array


class Take(Protocol):
    """What `take_pieces` does, if something does it faster."""

    def __call__(
        self, groups: Sequence[PackedGroup], which: _Array, rows: _Array, firsts: _Array
    ) -> Pieces:
        """Take the pieces of rows."""


def take_pieces(
    groups: Sequence[PackedGroup], which: _Array, rows: _Array, firsts: _Array
) -> Pieces:
    """Take the pieces of rows.

    Args:
        groups: The groups that they are of.
        which: ``(rows,) int64``: the group of each.
        rows: ``(rows,) int64``: its place in that group.
        firsts: ``(rows,) int64``: the sample id of its group's first document.
    """
    parts = [np.empty((0, 5), np.int32)]
    for group, row in zip(which.tolist(), rows.tolist(), strict=True):
        starts = groups[group].starts
        parts.append(groups[group].pieces[starts[row] : starts[row + 1]])
    counts = np.array([len(part) for part in parts[1:]], np.int64)
    wide = np.concatenate(parts).astype(np.int64)
    return Pieces(counts, wide[:, 0] + np.repeat(firsts, counts), np.ascontiguousarray(wide[:, 1:]))
