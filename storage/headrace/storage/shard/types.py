"""The Arrow types that may be stored, each with a canonical text that no library changes."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import UnsupportedColumnError

if TYPE_CHECKING:
    Field = pa.Field[Any]  # generic only in pyarrow's stubs

# The texts are part of the fingerprint: changing one changes the format.
_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.uint8(): "uint8",
    pa.uint16(): "uint16",
    pa.uint32(): "uint32",
    pa.uint64(): "uint64",
    pa.float16(): "float16",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.date32(): "date32",
    pa.date64(): "date64",
    pa.string(): "string",
    pa.large_string(): "large_string",
    pa.binary(): "binary",
    pa.large_binary(): "large_binary",
}


def type_text(arrow_type: pa.DataType, *, column: str) -> str:
    """Return the canonical text of a storable type.

    Args:
        arrow_type: Any Arrow type.
        column: The name of the column, for the error.

    Raises:
        UnsupportedColumnError: The type cannot be stored.
    """
    plain = _PLAIN.get(arrow_type)
    if plain is not None:
        return plain
    for matches, text in _NESTED:
        if matches(arrow_type):
            return text(arrow_type, column)
    raise UnsupportedColumnError(
        f"column {column!r} has type {arrow_type}, which a shard cannot store; cast it to a "
        "number, bool, string, binary, date, timestamp, decimal, list or struct, or leave it out",
        column=column,
        type=arrow_type,
    )


def schema_texts(schema: pa.Schema) -> list[list[str | bool]]:
    """Return ``[name, type text, nullable]`` for each column.

    Raises:
        UnsupportedColumnError: A type cannot be stored, or a name is empty or occurs twice.
    """
    names = schema.names
    for name in names:
        if not name or names.count(name) > 1:
            raise UnsupportedColumnError(
                f"column name {name!r} is empty or occurs twice in {names}; rename it", column=name
            )
    return [[field.name, _field_text(field, field.name), field.nullable] for field in schema]


def schema_to_text(schema: pa.Schema) -> str:
    """Return a schema as a text for `schema_from_text`; it may differ between Arrow's versions."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def schema_from_text(text: str) -> pa.Schema:
    """Return the schema in a text of `schema_to_text`.

    Raises:
        ValueError: The text is not base64, or does not hold a schema.
    """
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))


def _field_text(field: Field, column: str) -> str:
    return type_text(field.type, column=column)


def _item_text(field: Field, column: str) -> str:
    # Items are nullable unless their type says otherwise.
    return _field_text(field, column) + ("" if field.nullable else "!")


def _timestamp_text(arrow_type: pa.TimestampType[Any, Any], column: str) -> str:
    del column
    zone = f",{arrow_type.tz}" if arrow_type.tz else ""
    return f"timestamp[{arrow_type.unit}{zone}]"


def _struct_text(arrow_type: pa.StructType, column: str) -> str:
    fields = (
        f"{_quoted(field.name)}:{_item_text(field, f'{column}.{field.name}')}"
        for field in arrow_type
    )
    return f"struct<{','.join(fields)}>"


def _map_text(arrow_type: pa.MapType[Any, Any, Any], column: str) -> str:
    key = type_text(arrow_type.key_type, column=column)
    return f"map<{key},{_item_text(arrow_type.item_field, column)}>"


def _tensor_text(arrow_type: pa.FixedShapeTensorType[Any], column: str) -> str:
    if arrow_type.permutation is not None and list(arrow_type.permutation) != sorted(
        arrow_type.permutation
    ):
        raise UnsupportedColumnError(
            f"column {column!r} is a tensor with permuted axes {arrow_type.permutation}; "
            "store it in row-major order",
            column=column,
        )
    shape = "x".join(str(side) for side in arrow_type.shape)
    return f"tensor<{type_text(arrow_type.value_type, column=column)},{shape}>"


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _refuse_extension(arrow_type: pa.DataType, column: str) -> str:
    raise UnsupportedColumnError(
        f"column {column!r} has the extension type {arrow_type}; only fixed-shape tensors can be "
        "stored, so cast it to its storage type",
        column=column,
    )


_NESTED: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[..., str]],
    ...,
] = (
    (lambda t: isinstance(t, pa.FixedShapeTensorType), _tensor_text),
    (lambda t: isinstance(t, pa.BaseExtensionType), _refuse_extension),
    (pa.types.is_timestamp, _timestamp_text),
    (pa.types.is_time, lambda t, _: str(t)),
    (pa.types.is_duration, lambda t, _: f"duration[{t.unit}]"),
    (pa.types.is_decimal, lambda t, _: f"decimal{t.bit_width}({t.precision},{t.scale})"),
    (pa.types.is_fixed_size_binary, lambda t, _: f"fixed_size_binary[{t.byte_width}]"),
    (
        pa.types.is_fixed_size_list,
        lambda t, c: f"fixed_size_list<{_item_text(t.value_field, c)}>[{t.list_size}]",
    ),
    (pa.types.is_list, lambda t, c: f"list<{_item_text(t.value_field, c)}>"),
    (pa.types.is_large_list, lambda t, c: f"large_list<{_item_text(t.value_field, c)}>"),
    (pa.types.is_struct, _struct_text),
    (pa.types.is_map, _map_text),
)
