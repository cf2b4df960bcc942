"""What the elements of a column are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

SAMPLE_ID_COLUMN = "headrace.sample_id"
"""The column that the server makes itself."""

_DTYPES = ("?", "<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")

ELEMENT_DTYPES: Mapping[int, np.dtype[np.generic]] = MappingProxyType(
    {number: np.dtype(name) for number, name in enumerate(_DTYPES, start=1)}
)
"""By the number of each ``ElementType``: little-endian; a bool is one byte, 0 or 1."""
