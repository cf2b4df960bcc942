"""Make Arrow columns from the values of many samples, without Python work per sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.storage.mds.arrays import ArrayType, MixedArrays, array_shapes, mixed_arrays
from headrace.storage.mds.arrow import (
    MAX_NARROW,
    Array,
    Field,
    array_of,
    fixed_lists,
    is_text,
    is_wide,
    item_type,
    offset_dtype,
)
from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.encoding import ARRAY_DTYPES, Encoding, ValueKind
from headrace.storage.mds.samples import Bytes, Spans, gather_numbers

_WIDEST_NUMBER = 8


def decode_column(
    content: Bytes, spans: Spans, encoding: Encoding, field: Field, *, arrays: ArrayType | None
) -> Array:
    """Return the values of one column.

    Args:
        content: The bytes that spans point into.
        spans: The places of the values.
        encoding: The encoding of the values.
        field: The resulting field, from `arrow_field` for the same encoding and arrays.
        arrays: The common properties of the column's arrays, if they store them themselves.

    Raises:
        DamageError: A value does not match its encoding.
    """
    match encoding.kind:
        case ValueKind.SCALAR:
            assert encoding.dtype is not None
            values = gather_numbers(content, spans.starts, encoding.dtype)
            return _numbers(values, field.type)
        case ValueKind.ARRAY if encoding.shape is not None:
            return _tensors(content, spans, encoding, field)
        case ValueKind.ARRAY:
            assert arrays is not None
            return _ragged(content, spans, encoding, field, arrays)
        case ValueKind.FLOAT_TEXT:
            return _floats(_checked_text(_gather(content, spans, pa.string())))
        case ValueKind.TEXT:
            return _checked_text(_gather(content, spans, field.type))
        case ValueKind.BYTES | ValueKind.PICKLE:
            return _gather(content, spans, field.type)


def _numbers(values: NDArray[Any], kind: pa.DataType) -> Array:
    return array_of(kind, len(values), [values])


def _gather(content: Bytes, spans: Spans, kind: pa.DataType) -> Array:
    """Copy values to consecutive places.

    The values and the gaps between them are the elements of one Arrow array over ``content``.
    Taking every second element copies each value at the speed of memory; indexing every byte with
    NumPy took ten times as long.
    """
    count = len(spans.starts)
    if not is_wide(kind) and max(2 * count, content.size) > MAX_NARROW:
        # The values fit even if the bytes around them do not.
        wider = pa.large_string() if is_text(kind) else pa.large_binary()
        return pc.cast(_gather(content, spans, wider), kind)
    edges = np.zeros(max(1, 2 * count), offset_dtype(kind))
    edges[0 : 2 * count : 2] = spans.starts
    edges[1 : 2 * count : 2] = spans.ends
    interleaved = array_of(kind, len(edges) - 1, [edges, content])
    return interleaved.take(pa.array(np.arange(0, 2 * count, 2), pa.int64()))


def _tensors(content: Bytes, spans: Spans, encoding: Encoding, field: Field) -> Array:
    size, dtype, kind = encoding.size, encoding.dtype, field.type
    assert size is not None
    assert dtype is not None
    values = _numbers(_rows(content, spans.starts, size).view(dtype), item_type(kind))
    if isinstance(kind, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(kind, fixed_lists(values, kind.storage_type))
    return fixed_lists(values, kind)


def _rows(content: Bytes, starts: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Return ``size`` consecutive bytes at each of ``starts``."""
    if size <= _WIDEST_NUMBER and size & (size - 1) == 0:
        return gather_numbers(content, starts, np.dtype(f"<u{size}")).view(np.uint8)
    count = len(starts)
    steps = np.diff(starts)
    if count > 1 and (steps == steps[0]).all():
        # Samples of the same size: the values form a grid, which NumPy copies row by row.
        first = content[starts[0] :]
        grid = np.lib.stride_tricks.as_strided(first, (count, size), (int(steps[0]), 1))
        return np.ascontiguousarray(grid).reshape(-1)
    return _gathered_bytes(content, Spans(starts, size))


def _gathered_bytes(content: Bytes, spans: Spans) -> NDArray[np.uint8]:
    """Return the bytes of all values, one after the other."""
    array = _gather(content, spans, pa.large_binary() if content.size > MAX_NARROW else pa.binary())
    total = int(np.sum(np.broadcast_to(spans.sizes, spans.starts.shape)))
    buffer = array.buffers()[2]
    if buffer is None or not total:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview(buffer), np.uint8, total)


def _ragged(
    content: Bytes, spans: Spans, encoding: Encoding, field: Field, arrays: ArrayType
) -> Array:
    if arrays.is_mixed:
        return _mixed(content, mixed_arrays(content, spans, encoding, wanted=arrays), field)
    shapes, elements = array_shapes(content, spans, encoding, wanted=arrays)
    kind = field.type
    lists = kind.field(0).type if pa.types.is_struct(kind) else kind
    data = _lists(content, elements, lists)
    if not pa.types.is_struct(kind):
        return data
    sides = pa.array(shapes.astype(np.int32).reshape(-1))
    shape = fixed_lists(sides, kind.field(1).type)
    return pa.StructArray.from_arrays([data, shape], fields=[kind.field(0), kind.field(1)])


def _mixed(content: Bytes, found: MixedArrays, field: Field) -> Array:
    kinds = {part.name: part.type for part in field.type}
    if "dtype" in kinds:
        data = _gather(content, found.elements, kinds["data"])
    else:
        data = _lists(content, found.elements, kinds["data"])
    sides = array_of(
        kinds["shape"],
        len(found.codes),
        [found.edges.astype(np.int32)],
        items=_numbers(found.sides, pa.int32()),
    )
    parts = [data, sides]
    if "dtype" in kinds:
        names = pa.array([dtype.name for dtype in ARRAY_DTYPES.values()])
        ordinals = np.searchsorted(np.array([*ARRAY_DTYPES]), found.codes)
        parts.append(names.take(pa.array(ordinals, pa.int64())))
    return pa.StructArray.from_arrays(parts, fields=list(field.type))


def _lists(content: Bytes, spans: Spans, kind: pa.DataType) -> Array:
    dtype = np.dtype(item_type(kind).to_pandas_dtype())
    values = _gathered_bytes(content, spans).view(dtype)
    edges = np.zeros(len(spans.starts) + 1, offset_dtype(kind))
    np.cumsum(np.asarray(spans.sizes) // dtype.itemsize, out=edges[1:])
    return array_of(kind, len(spans.starts), [edges], items=_numbers(values, item_type(kind)))


def _checked_text(texts: Array) -> Array:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        _refuse_bad_text(texts)
        raise
    return texts


def _refuse_bad_text(texts: Array) -> None:
    values = texts.view(pa.large_binary() if is_wide(texts.type) else pa.binary())
    for at, value in enumerate(values):
        content: bytes = value.as_py()
        try:
            content.decode()
        except UnicodeDecodeError as error:
            raise DamageError(f"text that is not UTF-8 at its byte {error.start}", at) from error


def _floats(texts: Array) -> Array:
    try:
        return pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        # Python accepts more than Arrow: surrounding spaces, '_' between digits, 'Infinity'.
        return pa.array(
            [_float(text, at) for at, text in enumerate(texts.to_pylist())], pa.float64()
        )


def _float(text: str | None, at: int) -> float:
    assert text is not None
    try:
        return float(text)
    except ValueError as error:
        raise DamageError(f"{text[:100]!r} found, expected the text of a number", at) from error
