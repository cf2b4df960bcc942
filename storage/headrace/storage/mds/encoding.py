"""The encodings of MDS columns: their names, sizes, and Arrow types."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


class ValueKind(enum.Enum):
    """How the bytes of a value are decoded."""

    SCALAR = "scalar"
    ARRAY = "array"
    BYTES = "bytes"
    TEXT = "text"
    FLOAT_TEXT = "float text"
    PICKLE = "pickle"


ARRAY_DTYPES: Mapping[int, np.dtype[Any]] = {
    8: np.dtype("<u1"),
    9: np.dtype("<i1"),
    16: np.dtype("<u2"),
    17: np.dtype("<i2"),
    18: np.dtype("<f2"),
    32: np.dtype("<u4"),
    33: np.dtype("<i4"),
    34: np.dtype("<f4"),
    64: np.dtype("<u8"),
    65: np.dtype("<i8"),
    66: np.dtype("<f8"),
}
"""Element types of arrays, by the code before an array that stores its type."""

MAX_AXES = 63
_MAX_ITEM_BYTES = 2**31 - 1  # Arrow counts the items of a fixed-size list in 32 bits
_DTYPES = {dtype.name: dtype for dtype in ARRAY_DTYPES.values()}
_KINDS = {
    "bytes": ValueKind.BYTES,
    "jpeg": ValueKind.BYTES,
    "jpeg_array": ValueKind.BYTES,
    "jpegarray": ValueKind.BYTES,
    "json": ValueKind.TEXT,
    "list[jpeg]": ValueKind.BYTES,
    "list[pil]": ValueKind.BYTES,
    "list[png]": ValueKind.BYTES,
    "pil": ValueKind.BYTES,
    "pkl": ValueKind.PICKLE,
    "png": ValueKind.BYTES,
    "str": ValueKind.TEXT,
    "str_decimal": ValueKind.TEXT,
    "str_float": ValueKind.FLOAT_TEXT,
    "str_int": ValueKind.TEXT,
}
_FORMATS = {"jpegarray": "jpeg_array", "pkl": "pickle"}
_ARRAY = re.compile(r"ndarray(?::([a-z0-9]+))?(?::(\d{1,10}(?:,\d{1,10})*))?")


@dataclass(frozen=True, slots=True)
class Encoding:
    """One column's encoding.

    Attributes:
        text: Its name in the index.
        kind: How a value is decoded.
        dtype: The dtype of a scalar or of an array's elements; `None` if each array stores its own.
        shape: The shape of every array; `None` if each array stores its own, empty for a scalar.
    """

    text: str
    kind: ValueKind
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None

    @property
    def size(self) -> int | None:
        """Return the size of every value in bytes, or `None` if it varies."""
        if self.dtype is None or self.shape is None:
            return None
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_dynamic(self) -> bool:
        """Return whether only the samples show the type of the arrays."""
        return self.kind is ValueKind.ARRAY and self.shape is None

    @property
    def format(self) -> str | None:
        """Return the format of the bytes, if known: ``jpeg``, ``png``, and so on."""
        if self.kind in {ValueKind.BYTES, ValueKind.PICKLE} and self.text != "bytes":
            return _FORMATS.get(self.text, self.text)
        return "json" if self.text == "json" else None


def parse_encoding(text: str) -> Encoding:
    """Return the encoding with a given name.

    Raises:
        ValueError: There is no encoding of that name, or its arrays are impossible.
    """
    if text in _KINDS:
        return Encoding(text, _KINDS[text])
    name = "int64" if text == "int" else text
    if name in _DTYPES:
        return Encoding(text, ValueKind.SCALAR, _DTYPES[name], ())
    match = _ARRAY.fullmatch(text)
    if match is None or (match[1] is not None and match[1] not in _DTYPES):
        raise ValueError(f"encoding {text[:100]!r} is unknown to this headrace")
    dtype = None if match[1] is None else _DTYPES[match[1]]
    shape = None if match[2] is None else tuple(int(side) for side in match[2].split(","))
    encoding = Encoding(text, ValueKind.ARRAY, dtype, shape)
    if shape is not None:
        _check_shape(encoding, shape)
    return encoding


def _check_shape(encoding: Encoding, shape: tuple[int, ...]) -> None:
    if encoding.dtype is None:
        raise ValueError(f"encoding {encoding.text[:100]!r} has a shape but no element type")
    if min(shape) < 1 or len(shape) > MAX_AXES or (encoding.size or 0) > _MAX_ITEM_BYTES:
        raise ValueError(
            f"encoding {encoding.text[:100]!r} has arrays without elements, with more than "
            f"{MAX_AXES} axes or with more than {_MAX_ITEM_BYTES} bytes"
        )
