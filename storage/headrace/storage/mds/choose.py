"""Choose the encoding with which an Arrow column is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from headrace.errors import UnsupportedColumnError
from headrace.storage.mds.arrow import Field, is_bytes, is_text, item_type
from headrace.storage.mds.encoding import ARRAY_DTYPES, Encoding, ValueKind, parse_encoding
from headrace.storage.mds.fields import ENCODING_KEY, FORMAT_KEY

_NUMBERS = {pa.from_numpy_dtype(dtype): dtype for dtype in ARRAY_DTYPES.values()}
_FORMATS = {b"jpeg": "jpeg", b"png": "png"}


def choose_encoding(field: Field) -> Encoding:
    """Return the encoding of a column.

    It is the one in the field's metadata, if a source stored it there and the type still matches;
    else one that reads back as the same values.

    Raises:
        UnsupportedColumnError: No encoding can store values of the type.
    """
    noted = (field.metadata or {}).get(ENCODING_KEY)
    if noted is not None:
        encoding = parse_encoding(noted.decode())
        if _FITS[encoding.kind](encoding, field.type):
            return encoding
    text = _text_for(field)
    if text is None:
        raise UnsupportedColumnError(
            f"column {field.name!r} has type {field.type}, for which MDS has no encoding; cast "
            "it to a number, a text, bytes or a list of numbers, or leave it out",
            column=field.name,
            type=field.type,
        )
    return parse_encoding(text)


def array_item(kind: pa.DataType) -> tuple[np.dtype[np.generic], tuple[int, ...] | None] | None:
    """Return the elements of arrays of a type, and their shape if it is the same for all.

    Returns:
        `None` if values are not arrays of numbers.
    """
    shape: tuple[int, ...] | None = ()
    if isinstance(kind, pa.FixedShapeTensorType):
        if kind.permutation not in (None, list(range(len(kind.shape)))):
            return None
        shape, kind = tuple(kind.shape), kind.value_type
    elif is_variable_tensor(kind):
        shape, kind = None, item_type(kind.field(0).type)
    elif pat.is_list(kind) or pat.is_large_list(kind):
        shape, kind = None, item_type(kind)
    else:
        while pat.is_fixed_size_list(kind):
            shape = (*(shape or ()), kind.list_size)
            kind = item_type(kind)
    dtype = _NUMBERS.get(kind)
    if dtype is None or shape == () or 0 in (shape or ()):
        return None
    return dtype, shape


def is_variable_tensor(kind: pa.DataType) -> bool:
    """Return whether values are arrays with several axes and any shape, as stored here."""
    if not isinstance(kind, pa.StructType) or [field.name for field in kind] != ["data", "shape"]:
        return False
    data, shape = (field.type for field in kind)
    return (pat.is_list(data) or pat.is_large_list(data)) and (
        pat.is_fixed_size_list(shape) and shape.value_type == pa.int32()
    )


def _text_for(field: Field) -> str | None:  # noqa: PLR0911 - one case a kind of type
    kind = field.type
    if kind in _NUMBERS:
        return _NUMBERS[kind].name
    if pat.is_boolean(kind):
        return "uint8"
    if is_text(kind):
        return "str"
    if is_bytes(kind) or pat.is_fixed_size_binary(kind):
        return _FORMATS.get((field.metadata or {}).get(FORMAT_KEY, b""), "bytes")
    if pat.is_decimal(kind):
        return "str_decimal"
    arrays = array_item(kind)
    if arrays is None:
        return None
    dtype, shape = arrays
    sides = "" if shape is None else ":" + ",".join(str(side) for side in shape)
    return f"ndarray:{dtype.name}{sides}"


def _fits_array(encoding: Encoding, kind: pa.DataType) -> bool:
    arrays = array_item(kind)
    if arrays is None or encoding.dtype not in {None, arrays[0]}:
        return False
    return encoding.shape in {None, arrays[1]}


_FITS: dict[ValueKind, Callable[[Encoding, pa.DataType], bool]] = {
    ValueKind.SCALAR: lambda encoding, kind: _NUMBERS.get(kind) == encoding.dtype,
    ValueKind.ARRAY: _fits_array,
    ValueKind.BYTES: lambda _, kind: is_bytes(kind),
    ValueKind.PICKLE: lambda _, kind: is_bytes(kind),
    ValueKind.TEXT: lambda _, kind: is_text(kind),
    ValueKind.FLOAT_TEXT: lambda _, kind: kind == pa.float64(),
}
