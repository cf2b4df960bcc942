"""The order's lookups, compiled once the kernels are there."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import walk_tables
from headrace.server._kernels import KERNELS


def walk(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Do what `headrace.order.walk_tables` does."""
    kernels = KERNELS.module
    if kernels is None:
        return walk_tables(tables, width, count, places)
    out = np.empty(places.size, np.int64)
    kernels.walk(tables, width, count, places, out)
    return out
