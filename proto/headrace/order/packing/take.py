"""Take the pieces of rows from their groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order.packing.group import PackedGroup
from headrace.order.samples.pieces import Pieces

_Array = NDArray[np.int64]


class Take(Protocol):
    """A faster equivalent of `take_pieces`."""

    def __call__(
        self, groups: Sequence[PackedGroup], which: _Array, rows: _Array, firsts: _Array
    ) -> Pieces:
        """Take the pieces of rows."""


def take_pieces(
    groups: Sequence[PackedGroup], which: _Array, rows: _Array, firsts: _Array
) -> Pieces:
    """Take the pieces of rows.

    Args:
        groups: The groups of the rows.
        which: ``(rows,) int64``: the group of each row, as an index into `groups`.
        rows: ``(rows,) int64``: the place of each row in its group.
        firsts: ``(rows,) int64``: the sample id of the first document of each row's group.
    """
    parts = [np.empty((0, 5), np.int32)]
    for group, row in zip(which.tolist(), rows.tolist(), strict=True):
        starts = groups[group].starts
        parts.append(groups[group].pieces[starts[row] : starts[row + 1]])
    counts = np.array([len(part) for part in parts[1:]], np.int64)
    wide = np.concatenate(parts).astype(np.int64)
    return Pieces(counts, wide[:, 0] + np.repeat(firsts, counts), np.ascontiguousarray(wide[:, 1:]))
