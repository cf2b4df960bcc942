"""What the elements of a column are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

SAMPLE_ID_COLUMN = "headrace.sample_id"
"""The column that the server makes itself."""

# NumPy has no bfloat16: two bytes that it makes nothing of, so that nobody takes them for a number.
BFLOAT16 = np.dtype("V2")
"""The elements of `ELEMENT_TYPE_BFLOAT16`: the upper halves of float32, little-endian."""

_DTYPES = ("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "V2")

ELEMENT_DTYPES: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_DTYPES, start=1)}
)
"""By the number of each ``ElementType``: little-endian; a bool is one byte, 0 or 1."""
