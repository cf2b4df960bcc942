"""Convert Spark's types to Arrow types."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types as spark

from headrace.errors import UnsupportedColumnError

NUMBERS: dict[type[spark.DataType], pa.DataType] = {
    spark.ByteType: pa.int8(),
    spark.ShortType: pa.int16(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.FloatType: pa.float32(),
    spark.DoubleType: pa.float64(),
    spark.BooleanType: pa.bool_(),
}
_PLAIN = {
    **NUMBERS,
    spark.StringType: pa.string(),
    spark.VarcharType: pa.string(),
    spark.CharType: pa.string(),
    spark.BinaryType: pa.binary(),
    spark.NullType: pa.null(),
    spark.DateType: pa.date32(),
    spark.TimestampType: pa.timestamp("us", "UTC"),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.DayTimeIntervalType: pa.duration("us"),
}
# Spark has it since 4.1, and this runs with 3.5 as well.
_TIME_OF_DAY: type[spark.DataType] | None = getattr(spark, "TimeType", None)
_ADVICE_BY_NAME = {
    "matrix": "turn it into an array with a function",
    "variant": "extract what you need (variant_get), or turn it into text (to_json)",
    "vector": "take it out of its array, map or struct (pyspark.ml.functions.vector_to_array)",
}
# By name, since Spark 3.5 lacks the first.
_ADVICE = {
    "CalendarIntervalType": "cast it to string, or to the parts you need",
    "YearMonthIntervalType": "cast it to int (months)",
}


def arrow_type(name: str, kind: spark.DataType) -> pa.DataType:
    """Return the Arrow type in which Spark delivers a type, at any nesting; void is null.

    Args:
        name: The name of the column, with dots where it is nested; for the error.
        kind: The kind of the column.

    Raises:
        UnsupportedColumnError: It cannot be stored; the message says which part and why.
    """
    plain = _PLAIN.get(type(kind))
    if plain is not None:
        return plain
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        item = arrow_type(f"{name}.element", kind.elementType)
        return pa.list_(pa.field("item", item, kind.containsNull or pa.types.is_null(item)))
    if isinstance(kind, spark.MapType):
        key = arrow_type(f"{name}.key", kind.keyType)
        value = arrow_type(f"{name}.value", kind.valueType)
        entry = pa.field("value", value, kind.valueContainsNull or pa.types.is_null(value))
        return pa.map_(key, entry)  # type: ignore[call-overload,no-any-return] # the stubs lack a field as the value
    if _TIME_OF_DAY is not None and isinstance(kind, _TIME_OF_DAY):
        return pa.time64("us")
    if isinstance(kind, spark.StructType) and kind.fields:
        # A field may be null wherever its struct is, whatever Spark says of the field alone.
        fields = [
            pa.field(part.name, arrow_type(f"{name}.{part.name}", part.dataType))
            for part in kind.fields
        ]
        return pa.struct(fields)
    raise _unsupported(name, kind)


def is_vector(kind: spark.DataType) -> bool:
    """Return whether a column holds vectors of Spark's ML package."""
    # By name: importing pyspark.ml costs half a second, and its old twin is mllib's.
    return isinstance(kind, spark.UserDefinedType) and kind.simpleString() == "vector"


def _unsupported(name: str, kind: spark.DataType) -> UnsupportedColumnError:
    advice = _ADVICE.get(type(kind).__name__) or _ADVICE_BY_NAME.get(kind.simpleString())
    return UnsupportedColumnError(
        f"column {name!r} is {kind.simpleString()}, expected a number, bool, string, binary, date, "
        "timestamp, decimal, vector, or an array, map or struct of these; "
        f"{advice or 'cast it'} or drop the column",
        column=name,
        type=kind.simpleString(),
    )
