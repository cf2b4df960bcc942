"""Convert to and from bfloat16, which NumPy lacks: the upper halves of float32's bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HALF = 16


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return numbers, none of them NaN, rounded to bfloat16, with halves rounded to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(_HALF)) & np.uint32(1)
    return ((bits + np.uint32(0x7FFF) + odd) >> np.uint32(_HALF)).astype(np.uint16)


def from_bfloat16(bits: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return bfloat16 numbers as float32, without loss.

    Args:
        bits: The numbers, two bytes each.
    """
    return (bits.view(np.uint16).astype(np.uint32) << np.uint32(_HALF)).view(np.float32)
