"""Pieces of samples, of which the items of an order may be made."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.int64]


class Pieces(NamedTuple):
    """The samples of some items of an order, item after item, such as documents of packed rows.

    Attributes:
        counts: ``(items,) int64``: pieces of each item.
        sample_ids: ``(pieces,) int64``: the sample of each piece.
        table: ``(pieces, 4) int64``: start of the piece in its sample, elements of the piece,
            elements of the sample, marks included, and start of the piece in its item.
    """

    counts: _Array
    sample_ids: _Array
    table: _Array
