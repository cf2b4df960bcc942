"""Flatten stored columns to those that can be sent: numbers, tensors, strings, bytes, lists.

docs/protocol.md has the table. Nested columns become several columns, by name:

- a struct ``a`` with a field ``b``: a column ``a.b``, null where either is;
- a list of structs, and a map as a list of ``key`` and ``value``: a list ``a.b`` for each field;
- a list of lists, strings or bytes: the list ``a`` of all innermost values of a sample, and a
  list ``a.lengths`` of the number of values in each item (``a.lengths2`` for the items' items);
- null items of a list are refused; with ``item_nulls`` they are zeros or empty, and a list
  ``a.items_valid`` marks them (``a.items_valid2`` for the items' items).

Dates, times, timestamps and durations become the integers that store them; decimals of more than 64
bits become their 16 or 32 bytes. Values are shared with the block if Arrow can do so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.errors import UnsupportedColumnError

if TYPE_CHECKING:
    Field = pa.Field[Any]  # generic only in pyarrow's stubs

# The contents of an array are known only at run time, but pyarrow's stubs depend on them.
Array: TypeAlias = Any
_arrow: Any = pa
_compute: Any = pc


@dataclass(frozen=True, slots=True)
class ColumnRecipe:
    """One column to send, and how to make it from a stored one.

    Attributes:
        base: The column, or the field of one, that it belongs to.
        type: A number, a fixed-size list of numbers, a string, bytes, or a list of numbers.
        nullable: Whether it may hold nulls.
        logical_type: What the values mean if ``type`` does not say so; else empty.
        extract: Makes the column from the stored one.
        role: Empty for values; otherwise ``lengths`` or ``items_valid``, which describe values.
        level: The items that the role describes: 1 for those of a sample, 2 for their items.
    """

    base: str
    type: pa.DataType
    nullable: bool
    logical_type: str
    extract: Callable[[Array], Array]
    role: Literal["", "lengths", "items_valid"] = ""
    level: int = 1

    @property
    def name(self) -> str:
        """The name of the column on the wire."""
        if not self.role:
            return self.base
        return f"{self.base}.{self.role}{self.level if self.level > 1 else ''}"


def lower_field(field: Field, *, item_nulls: bool = False) -> list[ColumnRecipe]:
    """Return the columns that a stored column becomes.

    A type that cannot be sent is returned unchanged; `split_schema` refuses it by name.

    Args:
        field: The stored column.
        item_nulls: Whether lists may hold null items. Most lists that are declared so hold none,
            and marking nulls takes a byte for each item.
    """
    kind = field.type
    if pat.is_struct(kind):
        return _struct(field, item_nulls=item_nulls)
    if pat.is_map(kind):
        return _map(field, item_nulls=item_nulls)
    if pat.is_list(kind) or pat.is_large_list(kind):
        return _list(field, item_nulls=item_nulls)
    if item_nulls and pat.is_fixed_size_list(kind) and _has_nullable_items(kind):
        return _tensor_with_nulls(field)
    return [_leaf(field)]


def _leaf(field: Field) -> ColumnRecipe:
    plain = _plain_type(field.type)
    if plain is None:
        return ColumnRecipe(field.name, field.type, field.nullable, "", lambda array: array)
    kind, view = plain
    return ColumnRecipe(field.name, kind, field.nullable, str(field.type), view)


def _plain_type(kind: pa.DataType) -> tuple[pa.DataType, Callable[[Array], Array]] | None:
    """Return the storage type of a logical type, and the function that views an array so."""
    if pat.is_temporal(kind):
        stored: pa.DataType = pa.int32() if kind.bit_width == _BITS_32 else pa.int64()
        return stored, lambda array: array.view(stored)
    if pat.is_decimal(kind):
        if kind.bit_width in _INTEGERS:
            integer = _INTEGERS[kind.bit_width]
            return integer, lambda array: array.view(integer)
        size = kind.bit_width // 8
        return pa.list_(_BYTE, size), lambda array: _bytes_of(array, size)
    return None


_BITS_32 = 32
_INTEGERS: dict[int, pa.DataType] = {32: pa.int32(), 64: pa.int64()}
_BYTE = pa.field("item", pa.uint8(), nullable=False)


def _bytes_of(array: Array, size: int) -> Array:
    values = array.buffers()[1]
    items = pa.Array.from_buffers(
        pa.uint8(), len(array) * size, [None, values], offset=array.offset * size
    )
    mask = array.is_null() if array.null_count else None
    return _arrow.FixedSizeListArray.from_arrays(items, type=pa.list_(_BYTE, size), mask=mask)


def _struct(field: Field, *, item_nulls: bool) -> list[ColumnRecipe]:
    columns = []
    for index, child in enumerate(field.type):
        inner = pa.field(
            f"{field.name}.{child.name}", child.type, nullable=field.nullable or child.nullable
        )
        columns += [
            _after(_child(index), lowered) for lowered in lower_field(inner, item_nulls=item_nulls)
        ]
    return columns


def _child(index: int) -> Callable[[Array], Array]:
    # Unlike `field`, `flatten` makes a child null where its struct is null.
    return lambda array: array.flatten()[index]


def _after(first: Callable[[Array], Array], lowered: ColumnRecipe) -> ColumnRecipe:
    then = lowered.extract
    return replace(lowered, extract=lambda array: then(first(array)))


def _map(field: Field, *, item_nulls: bool) -> list[ColumnRecipe]:
    kind = field.type
    pair = pa.struct(
        [
            pa.field("key", kind.key_type, nullable=False),
            pa.field("value", kind.item_type, kind.item_field.nullable),
        ]
    )
    entries = pa.field(field.name, pa.list_(pa.field("item", pair, nullable=False)), field.nullable)
    return [_after(_entries, part) for part in lower_field(entries, item_nulls=item_nulls)]


def _entries(array: Array) -> Array:
    assert isinstance(array, pa.MapArray)
    pairs = _arrow.StructArray.from_arrays([array.keys, array.items], names=["key", "value"])
    kind = pa.list_(pa.field("item", pairs.type, nullable=False))
    # Validity and offsets stay: keys and items are complete even if the array is a slice.
    return pa.Array.from_buffers(
        kind, len(array), array.buffers()[:2], offset=array.offset, children=[pairs]
    )


def _tensor_with_nulls(field: Field) -> list[ColumnRecipe]:
    filled = _with_element(field.type, None)
    values = ColumnRecipe(field.name, filled, field.nullable, "", lambda a: _filled(a, filled))
    marks = _with_element(field.type, pa.bool_())
    valid = ColumnRecipe(
        field.name,
        marks,
        field.nullable,
        "",
        lambda a: _relist(a, marks, lambda items: items.is_valid()),
        role="items_valid",
    )
    return [values, valid]


def _has_nullable_items(kind: pa.DataType) -> bool:
    return pat.is_fixed_size_list(kind) and (
        kind.value_field.nullable or _has_nullable_items(kind.value_type)
    )


def _with_element(kind: pa.DataType, element: pa.DataType | None) -> pa.DataType:
    if not pat.is_fixed_size_list(kind):
        return kind if element is None else element
    inner = _with_element(kind.value_type, element)
    size: int = kind.list_size
    return pa.list_(pa.field("item", inner, nullable=False), size)


def _filled(array: Array, kind: pa.DataType) -> Array:
    return _relist(array, kind, lambda items: _compute.fill_null(items, _zero(items.type)))


def _relist(array: Array, kind: pa.DataType, change: Callable[[Array], Array]) -> Array:
    """Rebuild a fixed-size list around changed innermost items."""
    if not pat.is_fixed_size_list(kind):
        return change(array)
    size = kind.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    mask = array.is_null() if array.null_count else None
    return _arrow.FixedSizeListArray.from_arrays(
        _relist(items, kind.value_type, change), type=kind, mask=mask
    )


def _zero(kind: pa.DataType) -> pa.Scalar[Any]:
    return pa.scalar(np.zeros((), kind.to_pandas_dtype()).item(), kind)


def _list(field: Field, *, item_nulls: bool) -> list[ColumnRecipe]:
    item = field.type.value_field
    if _is_number(item.type) and not (item.nullable and item_nulls):
        return [_leaf(field)]
    inner = pa.field(field.name, item.type, item.nullable)
    columns = []
    for lowered in lower_field(inner, item_nulls=item_nulls):
        columns += _lifted(lowered, nullable=field.nullable, item_nulls=item_nulls)
    return columns


def _lifted(item: ColumnRecipe, *, nullable: bool, item_nulls: bool) -> list[ColumnRecipe]:
    """Return the columns of samples that a column of list items becomes."""
    if item.nullable and not item_nulls:
        item = _after_check(item)
    values = replace(_list_column(item, _flat, _innermost(item.type)), nullable=nullable)
    if item.role:
        # It describes the items' items; the lengths of items come with the values.
        return [replace(values, level=item.level + 1)]
    if item.logical_type:
        values = replace(values, logical_type=f"list<{item.logical_type}>")
    columns = [values]
    if not _has_fixed_width(item.type):
        lengths = _list_column(item, lambda a, ends: (_lengths(a), ends), pa.int64())
        columns.append(replace(lengths, nullable=nullable, role="lengths"))
    if item.nullable:
        valid = _list_column(item, lambda a, ends: (a.is_valid(), ends), pa.bool_())
        columns.append(replace(valid, nullable=nullable, role="items_valid"))
    return columns


def _after_check(item: ColumnRecipe) -> ColumnRecipe:
    then = item.extract

    def extract(items: Array) -> Array:
        found = then(items)
        if found.null_count:
            raise null_items_error(item.base)
        return found

    return replace(item, nullable=False, extract=extract)


def null_items_error(column: str) -> UnsupportedColumnError:
    """Return the error for a list that holds a null item although its type allows none."""
    return UnsupportedColumnError(
        f"column {column!r} contains a list with a null item; serve the dataset with --item-nulls "
        f"(privately, with PrivateServer(item_nulls=True)) to send which items are valid as "
        f"{column}.items_valid, or replace the nulls in the data. This also ends streams that do "
        "not read the column",
        column=column,
    )


_Ends: TypeAlias = NDArray[np.int64]


def _list_column(
    item: ColumnRecipe,
    values_of: Callable[[Array, _Ends], tuple[Array, _Ends]],
    element: pa.DataType,
) -> ColumnRecipe:
    """Return a column of lists of the values that ``values_of`` finds in the items."""
    kind = pa.large_list(pa.field("item", element, nullable=False))

    def extract(array: Array) -> Array:
        rows = _Rows(array)
        return rows.relist(*values_of(item.extract(rows.items), rows.ends), kind)

    return ColumnRecipe(
        item.base, kind, nullable=False, logical_type="", extract=extract, role=item.role
    )


class _Rows:
    """A list column: its items without those of null lists, and where each sample's items end."""

    def __init__(self, array: Array) -> None:
        self.items: Array = array.flatten()
        lengths = _compute.fill_null(_compute.list_value_length(array), 0)
        self.ends = np.zeros(len(array) + 1, np.int64)
        np.cumsum(lengths.to_numpy(zero_copy_only=False), out=self.ends[1:])
        self._mask = array.is_null() if array.null_count else None

    def relist(self, values: Array, ends: _Ends, kind: pa.DataType) -> Array:
        """Return the samples' lists, given flat values and their ends."""
        return _arrow.LargeListArray.from_arrays(
            pa.array(ends, pa.int64()), values, type=kind, mask=self._mask
        )


def _flat(items: Array, ends: _Ends) -> tuple[Array, _Ends]:
    """Return the innermost values of items, without nulls, and where those of each sample end."""
    if pat.is_fixed_size_list(items.type):
        width = _width(items.type)
        return _innermost_values(items), ends * width
    if _has_fixed_width(items.type):
        return (_compute.fill_null(items, _zero(items.type)) if items.null_count else items), ends
    inner = np.zeros(len(items) + 1, np.int64)
    np.cumsum(_lengths(items).to_numpy(zero_copy_only=False), out=inner[1:])
    return _contents(items), inner[ends]


def _innermost_values(items: Array) -> Array:
    while pat.is_fixed_size_list(items.type):
        size = items.type.list_size
        items = items.values.slice(items.offset * size, len(items) * size)
    return _compute.fill_null(items, _zero(items.type)) if items.null_count else items


def _contents(items: Array) -> Array:
    """Return the values of non-null lists, or the bytes of non-null strings, as one array."""
    if pat.is_list(items.type) or pat.is_large_list(items.type):
        return items.flatten()
    present = items.drop_null() if items.null_count else items
    wide = present.cast(pa.large_binary())
    _, offsets, content = wide.buffers()
    ends = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    first, last = (int(ends[0]), int(ends[-1])) if len(wide) else (0, 0)
    return pa.Array.from_buffers(pa.uint8(), last - first, [None, content], offset=first)


def _lengths(items: Array) -> Array:
    """Return the number of values or bytes of each item as int64; 0 for nulls."""
    if pat.is_list(items.type) or pat.is_large_list(items.type):
        found = _compute.list_value_length(items)
    else:
        found = _compute.binary_length(items)
    return _compute.fill_null(found, 0).cast(pa.int64())


def _innermost(kind: pa.DataType) -> pa.DataType:
    if pat.is_fixed_size_list(kind) or pat.is_list(kind) or pat.is_large_list(kind):
        return _innermost(kind.value_type)
    return kind if _is_number(kind) else pa.uint8()


def _width(kind: pa.DataType) -> int:
    return kind.list_size * _width(kind.value_type) if pat.is_fixed_size_list(kind) else 1


def _has_fixed_width(kind: pa.DataType) -> bool:
    return _is_number(kind) or pat.is_fixed_size_list(kind)


def _is_number(kind: pa.DataType) -> bool:
    return pat.is_integer(kind) or pat.is_floating(kind) or pat.is_boolean(kind)
