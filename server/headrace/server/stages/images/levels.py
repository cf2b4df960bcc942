"""Write the final values of pixels: one table of 256 values for each channel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.loader import LOOPS

_LEVELS = 256


def map_levels(
    pixels: NDArray[np.uint8],
    table: NDArray[np.generic] | None,
    out: NDArray[np.generic],
    *,
    is_chw: bool,
) -> None:
    """Write the final value of each pixel.

    Args:
        pixels: ``(height, width, channels) uint8``, contiguous.
        table: ``(channels, 256)``: the final value of each level, of 1, 2 or 4 bytes; None for the
            levels themselves.
        out: ``(channels, height, width)`` or ``(height, width, channels)``, contiguous, of the type
            of the table; it is written once and not read.
        is_chw: Whether channels are the first dimension of `out`.
    """
    channels = pixels.shape[2]
    if table is None:
        table = np.broadcast_to(np.arange(_LEVELS, dtype=np.uint8), (channels, _LEVELS))
    numbers = np.array((channels, out.dtype.itemsize, is_chw), dtype=np.int64)
    tables = np.ascontiguousarray(table).reshape(-1).view(np.uint8)
    LOOPS.map_levels(pixels.reshape(-1), tables, numbers, out.reshape(-1).view(np.uint8))
