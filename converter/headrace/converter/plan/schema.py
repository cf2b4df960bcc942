"""Decide before the job starts how every column is stored, or refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.converter.columns.derived_names import refuse_derived_names
from headrace.converter.columns.stored_columns import ColumnPlan, with_innermost
from headrace.converter.columns.type_names import named_type
from headrace.converter.plan.write_options import Shape, WriteOptions
from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.storage import (
    CLASSES_KEY,
    FORMAT_KEY,
    SHAPE_AUTO,
    SHAPE_KEY,
    holds_classes,
    schema_texts,
    with_classes,
)

if TYPE_CHECKING:
    from pyspark.sql import types as spark

    Field = pa.Field[Any]  # pyarrow's stubs have it generic, pyarrow itself has not

_NUMBERS = {
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    pa.bool_(),
}


def plan_columns(
    schema: spark.StructType | pa.Schema, declared: WriteOptions | None = None
) -> tuple[ColumnPlan, ...]:
    """Return how each column is stored.

    Args:
        schema: The schema of the DataFrame, or of a function's result.
        declared: Exceptions to the rule. Arrays of numbers without a shape become tensors if all
            samples have the same length, and lists otherwise; nested arrays without a shape are
            lists of lists. Void columns become bools, all null.

    Raises:
        UnsupportedColumnError: A column cannot be stored, or its name is that of a column derived
            from another one; the message says which, why, and what to do.
        ColumnNotFoundError: A declaration names a column that does not exist.
        BadArgumentError: There are no columns, or a declaration is invalid.
    """
    said = declared or WriteOptions()
    for argument in ("shapes", "types", "formats", "classes"):
        _refuse_unknown_names(argument, getattr(said, argument), schema.names)
    if not schema.names:
        raise BadArgumentError("the DataFrame has no columns", field="df")
    plans = tuple(_plan(name, schema, said) for name in schema.names)
    refuse_derived_names([plan.field for plan in plans])
    schema_texts(pa.schema([plan.field for plan in plans]))
    return plans


def _refuse_unknown_names(argument: str, said: Mapping[str, object], names: list[str]) -> None:
    missing = sorted(set(said) - set(names))
    if missing:
        raise ColumnNotFoundError(
            f"{argument} names {', '.join(missing)}, but the columns to write are "
            f"{', '.join(names)}",
            column=missing[0],
        )


def _plan(name: str, schema: spark.StructType | pa.Schema, said: WriteOptions) -> ColumnPlan:
    vector = False
    metadata: dict[bytes | str, bytes | str] = {}
    if isinstance(schema, pa.Schema):
        source = schema.field(name).type
        metadata.update((schema.field(name).metadata or {}).items())
    else:
        source, vector = _of_spark(name, schema[name].dataType)
    kind = _wanted_type(name, source, said.types.get(name))
    if name in said.formats:
        metadata[FORMAT_KEY] = _checked_format(name, kind, said.formats[name])
    stored, sides = _shaped(name, kind, said.shapes.get(name))
    if sides is None and stored == kind and _is_plain_list(kind) and name not in said.shapes:
        metadata[SHAPE_KEY] = SHAPE_AUTO
    planned = _with_classes(pa.field(name, stored, metadata=metadata or None), said)
    return ColumnPlan(planned, shape=sides, is_vector=vector)


def _with_classes(planned: Field, said: WriteOptions) -> Field:
    if planned.name in said.classes:
        return with_classes(planned, said.classes[planned.name])
    if CLASSES_KEY in (planned.metadata or {}) and not holds_classes(planned.type):
        raise BadArgumentError(
            f"column {planned.name!r} contains class numbers, but types has {planned.type} for it; "
            "expected an integer type",
            field="types",
        )
    return planned


def _of_spark(name: str, kind: spark.DataType) -> tuple[pa.DataType, bool]:
    """Return the type in which Spark delivers a column, and whether it contains vectors."""
    from headrace.converter.columns.spark_types import arrow_type, is_vector  # noqa: PLC0415 - files need no Spark

    if is_vector(kind):
        return pa.list_(pa.field("item", pa.float64(), nullable=False)), True
    return arrow_type(name, kind), False


def _wanted_type(name: str, source: pa.DataType, wanted: str | pa.DataType | None) -> pa.DataType:
    """Return the type to store, with lists of numbers without nulls inside."""
    kind = _without_void(source)
    if wanted is not None:
        named = named_type(wanted, column=name)
        kind = named if pa.types.is_nested(named) else with_innermost(kind, named)
        _refuse_impossible(name, source, kind)
    if isinstance(kind, pa.ListType) and kind.value_type in _NUMBERS:
        return pa.list_(pa.field("item", kind.value_type, nullable=False))
    return kind


def _without_void(kind: pa.DataType) -> pa.DataType:
    """Return a type in which null types are bools, since shards have no null type."""
    if pa.types.is_null(kind):
        return pa.bool_()
    if isinstance(kind, pa.ListType):
        return pa.list_(kind.value_field.with_type(_without_void(kind.value_type)))
    if isinstance(kind, pa.StructType):
        return pa.struct([part.with_type(_without_void(part.type)) for part in kind])
    if isinstance(kind, pa.MapType):
        value = kind.item_field.with_type(_without_void(kind.item_type))
        return pa.map_(_without_void(kind.key_type), value)  # type: ignore[call-overload,no-any-return] # the stubs lack a field as the value
    return kind


def _refuse_impossible(name: str, source: pa.DataType, kind: pa.DataType) -> None:
    try:
        pa.array([], source).cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedColumnError(
            f"column {name!r} is {source}, but types has {kind}, for which there is no cast; use a "
            "Spark expression, or a function",
            column=name,
            type=str(kind),
        ) from error


def _is_plain_list(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.ListType) and kind.value_type in _NUMBERS


def _shaped(
    name: str, kind: pa.DataType, shape: Shape | None
) -> tuple[pa.DataType, tuple[int, ...] | None]:
    """Return the type of a column with its declared shape, and the shape of its tensors."""
    if shape is None:
        return kind, None
    innermost, depth = _innermost(kind)
    if depth == 0 or (innermost not in _NUMBERS and shape != "ragged"):
        what = "no array" if depth == 0 else "not an array of numbers"
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, which is {_spark_text(kind)} and "
            f"{what}",
            field="shapes",
        )
    if shape == "ragged":
        return kind, None
    sides = _checked_shape(name, shape, depth)
    if len(sides) == 1:
        return pa.list_(pa.field("item", innermost, nullable=False), sides[0]), sides
    return pa.fixed_shape_tensor(innermost, sides), sides


def _innermost(kind: pa.DataType) -> tuple[pa.DataType, int]:
    depth = 0
    while isinstance(kind, pa.ListType):
        kind, depth = kind.value_type, depth + 1
    return kind, depth


def _spark_text(kind: pa.DataType) -> str:
    """Return Spark's name for a type."""
    names = {"int64": "bigint", "int32": "int", "int16": "smallint", "int8": "tinyint"}
    return names.get(str(kind), str(kind))


def _checked_shape(name: str, shape: tuple[int, ...], depth: int) -> tuple[int, ...]:
    sides = tuple(int(side) for side in shape)
    if not sides or min(sides) < 1 or math.prod(sides) >= 2**31:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, expected lengths >= 1 whose product "
            "is below 2**31",
            field="shapes",
        )
    if depth not in {1, len(sides)}:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, whose arrays have {depth} dimensions; "
            f"expected {depth} lengths, or flat arrays of {math.prod(sides)} values",
            field="shapes",
        )
    return sides


def _checked_format(name: str, kind: pa.DataType, text: str) -> bytes:
    if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) or not text:
        raise BadArgumentError(
            f"formats has {text!r} for column {name!r}, which is {kind}; expected a name such as "
            "jpeg, for a column of binary",
            field="formats",
        )
    return text.encode()
