"""Best fit: each piece goes into the row with the least room that it fits into."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.int64]


class Fitted(NamedTuple):
    """Where pieces went.

    Attributes:
        pieces: ``(pieces, 4) int64``: row, document, where the piece starts in it, its elements; in
            the order in which they were placed.
        row_count: Rows.
    """

    pieces: _Array
    row_count: int


class Fit(Protocol):
    """What `best_fit` does, if something does it faster."""

    def __call__(
        self, documents: _Array, begins: _Array, sizes: _Array, limits: tuple[int, int, int]
    ) -> Fitted | None:
        """Place documents; None if they need more rows than there may be."""


def best_fit(
    documents: _Array, begins: _Array, sizes: _Array, limits: tuple[int, int, int]
) -> Fitted | None:
    """Place documents one after the other, each into the row with the least room for it.

    Of rows with equal room the one that came to it last is taken. What fits into no row starts
    a new one; or, with ``cut``, fills the row with the most room, if that is at least ``cut``, and
    what is left of it continues.

    Args:
        documents: ``(documents,) int64``, in the order in which they are placed.
        begins: ``(documents,) int64``: where what is left of each begins.
        sizes: ``(documents,) int64``: elements of that, in [1, length].
        limits: Elements of a row; ``cut``, 0 for never; most rows.

    Returns:
        The pieces; None if they need more rows.
    """
    length, cut, most_rows = limits
    # Bit r of the mask is set if some row has room for r elements.
    rooms: list[list[int]] = [[] for _ in range(length + 1)]
    mask = row_count = 0
    placed: list[tuple[int, int, int, int]] = []
    for document, begin, size in zip(
        documents.tolist(), begins.tolist(), sizes.tolist(), strict=True
    ):
        while size:
            fits = mask >> size
            if fits:
                room = size + (fits & -fits).bit_length() - 1
            elif cut and mask.bit_length() > cut:
                room = mask.bit_length() - 1
            else:
                if row_count == most_rows:
                    return None
                rooms[length].append(row_count)
                row_count += 1
                room = length
            row = rooms[room].pop()
            if not rooms[room]:
                mask &= ~(1 << room)
            taken = min(size, room)
            placed.append((row, document, begin, taken))
            if room > taken:
                rooms[room - taken].append(row)
                mask |= 1 << room - taken
            begin, size = begin + taken, size - taken  # noqa: PLW2901 - as above
    return Fitted(np.array(placed, np.int64).reshape(-1, 4), row_count)
