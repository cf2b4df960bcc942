"""Convert columns of Parquet files to the types in which they are served.

Arrow has several layouts for the same kind of value: dictionaries, views, 64-bit offsets, extension
types. Files of one dataset may differ in them, so each kind has one layout here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Field = pa.Field[Any]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which columns of ``kind`` are served."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if isinstance(kind, pa.DictionaryType):
        return plain_type(kind.value_type)
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    for matches, convert in _NESTED:
        if matches(kind):
            return convert(kind)
    return kind


def plain_field(field: Field) -> Field:
    """Return the field with its type plain, without metadata."""
    return pa.field(field.name, plain_type(field.type), field.nullable)


def plain_array(column: pa.ChunkedArray[Any], kind: pa.DataType) -> Array:
    """Return a column as one array of ``kind``.

    Args:
        column: A column of a type whose plain type is ``kind``, or one that widens to it.
        kind: As `plain_type` and `wider_type` return them.

    Raises:
        ArrowException: A value does not fit.
    """
    chunks: Sequence[Array] = column.chunks
    whole: Array = (
        chunks[0] if len(chunks) == 1 else pa.concat_arrays([pa.array([], column.type), *chunks])
    )
    if whole.type == kind:
        return whole
    if isinstance(whole, pa.ExtensionArray):
        whole = whole.storage
    cast: Array = whole if whole.type == kind else whole.cast(kind)
    return cast


def wider_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the plain type that represents every value of both without loss, or None.

    Integers widen to integers, floats to floats, decimals of one scale to the wider one, times to
    the finer unit; lists, structs and maps by their contents.
    """
    if left == right:
        return left
    if pa.types.is_null(left):
        return right
    if pa.types.is_null(right):
        return left
    for matches, join in _JOINS:
        if matches(left) and matches(right):
            return join(left, right)
    return None


def wider_field(left: Field, right: Field) -> Field | None:
    """Return the field that represents both, or None."""
    kind = wider_type(left.type, right.type)
    return None if kind is None else pa.field(left.name, kind, left.nullable or right.nullable)


def map_type(key: pa.DataType, value: Field) -> pa.DataType:
    """Return the type of maps from ``key`` to ``value``."""
    kind: pa.DataType = pa.map_(key, value)  # type: ignore[call-overload] # the stubs lack fields
    return kind


def _item(kind: Any) -> Field:
    return pa.field("item", plain_type(kind.value_type), kind.value_field.nullable)


def _plain_map(kind: Any) -> pa.DataType:
    items = pa.field("value", plain_type(kind.item_type), kind.item_field.nullable)
    return map_type(plain_type(kind.key_type), items)


_SIMPLE: dict[pa.DataType, pa.DataType] = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}

_NESTED: Sequence[tuple[Callable[[Any], bool], Callable[[Any], pa.DataType]]] = (
    (pa.types.is_fixed_size_list, lambda kind: pa.list_(_item(kind), kind.list_size)),
    (pa.types.is_list, lambda kind: pa.list_(_item(kind))),
    (pa.types.is_large_list, lambda kind: pa.list_(_item(kind))),
    (pa.types.is_list_view, lambda kind: pa.list_(_item(kind))),
    (pa.types.is_large_list_view, lambda kind: pa.list_(_item(kind))),
    (pa.types.is_struct, lambda kind: pa.struct([plain_field(field) for field in kind])),
    (pa.types.is_map, _plain_map),
)


_UNITS = ("s", "ms", "us", "ns")


def _wider_number(left: Any, right: Any) -> pa.DataType:
    wider: pa.DataType = left if left.bit_width >= right.bit_width else right
    return wider


def _wider_decimal(left: Any, right: Any) -> pa.DataType | None:
    if left.scale != right.scale:
        return None
    wider: pa.DataType = left if left.precision >= right.precision else right
    return wider


def _finer_time(left: Any, right: Any) -> pa.DataType | None:
    if left.tz != right.tz:
        return None
    finer: pa.DataType = left if _UNITS.index(left.unit) >= _UNITS.index(right.unit) else right
    return finer


def _wider_list(left: Any, right: Any) -> pa.DataType | None:
    item = wider_field(left.value_field, right.value_field)
    return None if item is None else pa.list_(item)


def _wider_fixed_list(left: Any, right: Any) -> pa.DataType | None:
    item = wider_field(left.value_field, right.value_field)
    if item is None or left.list_size != right.list_size:
        return None
    wider: pa.DataType = pa.list_(item, left.list_size)
    return wider


def _wider_struct(left: Any, right: Any) -> pa.DataType | None:
    if [field.name for field in left] != [field.name for field in right]:
        return None
    fields = [wider_field(a, b) for a, b in zip(left, right, strict=True)]
    known = [field for field in fields if field is not None]
    return pa.struct(known) if len(known) == len(fields) else None


def _wider_map(left: Any, right: Any) -> pa.DataType | None:
    key = wider_type(left.key_type, right.key_type)
    value = wider_field(left.item_field, right.item_field)
    return None if key is None or value is None else map_type(key, value)


def _is_decimal(kind: Any) -> bool:
    return pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind)


_JOINS: Sequence[tuple[Callable[[Any], bool], Callable[[Any, Any], pa.DataType | None]]] = (
    (pa.types.is_signed_integer, _wider_number),
    (pa.types.is_unsigned_integer, _wider_number),
    (pa.types.is_floating, _wider_number),
    (_is_decimal, _wider_decimal),
    (pa.types.is_timestamp, _finer_time),
    (pa.types.is_list, _wider_list),
    (pa.types.is_fixed_size_list, _wider_fixed_list),
    (pa.types.is_struct, _wider_struct),
    (pa.types.is_map, _wider_map),
)
