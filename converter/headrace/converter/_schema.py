"""Decide before the job starts how every column is stored, or refuse."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, TypeAlias

import pyarrow as pa
from pyspark.sql import types as spark

from headrace.converter._columns import ColumnPlan
from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.storage import SHAPE_AUTO, SHAPE_KEY, schema_texts

Shape: TypeAlias = tuple[int, ...] | Literal["ragged"]

_NUMBERS: dict[type[spark.DataType], pa.DataType] = {
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.BooleanType: pa.bool_(),
}
_PLAIN = {
    **_NUMBERS,
    spark.StringType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.CharType: pa.string(),
    spark.BinaryType: pa.binary(),
}
_TIMES: dict[type[spark.DataType], pa.DataType] = {
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", "UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
}
# Spark has it since 4.1, and this runs with 3.5 as well.
_TIME_OF_DAY: type[spark.DataType] | None = getattr(spark, "TimeType", None)
_ADVICE_BY_NAME = {
    "variant": "take what you need of it (variant_get), or turn it into text (to_json)",
}
_ADVICE: dict[type[spark.DataType], str] = {
    spark.NullType: "cast it to the type it should have",
    spark.CalendarIntervalType: "cast it to string, or to the parts you need",
    spark.YearMonthIntervalType: "cast it to int (months)",
}
_UDT_ADVICE = "turn it into an array (pyspark.ml.functions.vector_to_array)"


def plan_columns(
    schema: spark.StructType, shapes: Mapping[str, Shape] | None = None
) -> tuple[ColumnPlan, ...]:
    """Return how each column of a DataFrame is stored.

    Args:
        schema: Of the DataFrame.
        shapes: For array columns: the sides of the tensor each sample holds, or ``"ragged"``.
            Arrays of numbers that are not declared become tensors if all samples have one
            length, and lists otherwise; nested arrays that are not declared are lists of lists.

    Raises:
        UnsupportedColumnError: A column cannot be stored; says which, why, and what to do.
        ColumnNotFoundError: A shape is declared for a column that is not there.
        BadArgumentError: There are no columns, or a declared shape makes no sense.
    """
    declared = dict(shapes or {})
    missing = sorted(set(declared) - set(schema.names))
    if missing:
        raise ColumnNotFoundError(
            f"shapes names {', '.join(missing)}, the DataFrame has {', '.join(schema.names)}",
            column=missing[0],
        )
    if not schema.fields:
        raise BadArgumentError("the DataFrame has no columns", field="df")
    plans = tuple(_plan(field, declared.get(field.name)) for field in schema.fields)
    schema_texts(pa.schema([plan.field for plan in plans]))
    return plans


def _plan(field: spark.StructField, shape: Shape | None) -> ColumnPlan:
    if isinstance(field.dataType, spark.ArrayType):
        return _plan_array(field.name, field.dataType, shape)
    if shape is not None:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {field.name!r}, which is "
            f"{field.dataType.simpleString()} and no array",
            field="shapes",
        )
    return ColumnPlan(pa.field(field.name, _arrow_type(field.name, field.dataType)))


def _arrow_type(name: str, kind: spark.DataType) -> pa.DataType:
    """Return how values of a Spark type are stored, whatever they nest."""
    plain = _PLAIN.get(type(kind)) or _TIMES.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        item = _arrow_type(f"{name}.element", kind.elementType)
        return pa.list_(pa.field("item", item, kind.containsNull))
    if isinstance(kind, spark.MapType):
        key = _arrow_type(f"{name}.key", kind.keyType)
        value = _arrow_type(f"{name}.value", kind.valueType)
        entry = pa.field("value", value, kind.valueContainsNull)
        return pa.map_(key, entry)  # type: ignore[call-overload,no-any-return] # the stubs lack a field as the value
    if _TIME_OF_DAY is not None and isinstance(kind, _TIME_OF_DAY):
        return pa.time64("us")
    if isinstance(kind, spark.StructType) and kind.fields:
        # A field may be null wherever its struct is, whatever Spark says of the field alone.
        fields = [
            pa.field(part.name, _arrow_type(f"{name}.{part.name}", part.dataType))
            for part in kind.fields
        ]
        return pa.struct(fields)
    raise _unsupported(name, kind)


def _plan_array(name: str, array: spark.ArrayType, shape: Shape | None) -> ColumnPlan:
    element, depth = _innermost(array)
    kind = _NUMBERS.get(type(element))
    if shape is not None and shape != "ragged" and kind is None:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, which is {array.simpleString()} and "
            "no array of numbers",
            field="shapes",
        )
    if kind is None or (depth > 1 and (shape is None or shape == "ragged")):
        return ColumnPlan(pa.field(name, _arrow_type(name, array)))
    item = pa.field("item", kind, nullable=False)
    if shape is None or shape == "ragged":
        metadata = {SHAPE_KEY: SHAPE_AUTO} if shape is None else None
        return ColumnPlan(pa.field(name, pa.list_(item), metadata=metadata))
    sides = _checked_shape(name, shape, depth)
    if len(sides) == 1:
        return ColumnPlan(pa.field(name, pa.list_(item, sides[0])), sides)
    return ColumnPlan(pa.field(name, pa.fixed_shape_tensor(kind, sides)), sides)


def _innermost(array: spark.ArrayType) -> tuple[spark.DataType, int]:
    element: spark.DataType = array
    depth = 0
    while isinstance(element, spark.ArrayType):
        element, depth = element.elementType, depth + 1
    return element, depth


def _checked_shape(name: str, shape: tuple[int, ...], depth: int) -> tuple[int, ...]:
    sides = tuple(int(side) for side in shape)
    if not sides or min(sides) < 1 or math.prod(sides) >= 2**31:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, wanted sides >= 1 whose product is "
            "below 2**31",
            field="shapes",
        )
    if depth not in {1, len(sides)}:
        raise BadArgumentError(
            f"shapes declares {shape!r} for column {name!r}, whose arrays are {depth} deep; "
            f"wanted {depth} sides, or flat arrays of {math.prod(sides)} values",
            field="shapes",
        )
    return sides


def _unsupported(name: str, kind: spark.DataType) -> UnsupportedColumnError:
    advice = _ADVICE.get(type(kind)) or _ADVICE_BY_NAME.get(kind.typeName())
    if isinstance(kind, spark.UserDefinedType):
        advice = _UDT_ADVICE
    return UnsupportedColumnError(
        f"column {name!r} is {kind.simpleString()}, wanted a number, bool, string, binary, date, "
        "timestamp, decimal, or an array, map or struct of these; "
        f"{advice or 'cast it'} or drop the column",
        column=name,
        type=kind.simpleString(),
    )
