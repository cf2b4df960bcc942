"""The types of the elements of columns."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

SAMPLE_ID_COLUMN = "headrace.sample_id"
"""The name of the column that the server adds itself."""

# NumPy has no bfloat16. It sees two opaque bytes, so that nobody takes them for a number.
BFLOAT16 = np.dtype("V2")
"""The elements of `ELEMENT_TYPE_BFLOAT16`: the upper halves of float32, little-endian."""

_DTYPES = ("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "V2")

ELEMENT_DTYPES: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_DTYPES, start=1)}
)
"""The dtype of each ``ElementType``, by its number: little-endian; a bool is one byte, 0 or 1."""
