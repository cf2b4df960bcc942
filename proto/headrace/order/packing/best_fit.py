"""Best fit: each piece goes into the fullest row that still has room for it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.int64]


class Placement(NamedTuple):
    """The result of placing documents.

    Attributes:
        pieces: ``(pieces, 4) int64``: row, document, start of the piece in the document, elements
            of the piece; in the order in which they were placed.
        row_count: Number of rows.
    """

    pieces: _Array
    row_count: int


class Fit(Protocol):
    """A faster equivalent of `best_fit`."""

    def __call__(
        self, documents: _Array, starts: _Array, sizes: _Array, limits: tuple[int, int, int]
    ) -> Placement | None:
        """Place documents; return None if they need more rows than allowed."""


def best_fit(
    documents: _Array, starts: _Array, sizes: _Array, limits: tuple[int, int, int]
) -> Placement | None:
    """Place documents one after the other, each into the fullest row that has room for it.

    Among rows with equal room, the one that got it last is taken. A document that fits into no row
    starts a new one. With ``cut``, it first fills the row with the most room, if that is at least
    ``cut`` elements, and then the rest of it is placed.

    Args:
        documents: ``(documents,) int64``, in the order in which they are placed.
        starts: ``(documents,) int64``: where the rest of each document starts.
        sizes: ``(documents,) int64``: elements of that rest, in [1, length].
        limits: Elements of a row; ``cut``, where 0 cuts nothing; the highest number of rows.

    Returns:
        The pieces; None if they need more rows than allowed.
    """
    length, cut, most_rows = limits
    # Bit r of the mask is set if a row has room for exactly r elements.
    rooms: list[list[int]] = [[] for _ in range(length + 1)]
    mask = row_count = 0
    placed: list[tuple[int, int, int, int]] = []
    for document, start, size in zip(
        documents.tolist(), starts.tolist(), sizes.tolist(), strict=True
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
            placed.append((row, document, start, taken))
            if room > taken:
                rooms[room - taken].append(row)
                mask |= 1 << room - taken
            start, size = start + taken, size - taken  # noqa: PLW2901 - as above
    return Placement(np.array(placed, np.int64).reshape(-1, 4), row_count)
