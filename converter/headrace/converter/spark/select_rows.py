"""Select the rows and columns of a DataFrame to write, as a Spark plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from headrace.converter.sources.pieces import new_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_KEY = "__headrace_shuffle_key"


def select_columns(df: DataFrame, columns: Sequence[str] | Mapping[str, str]) -> DataFrame:
    """Keep columns in the given order, with new names if ``columns`` is a mapping.

    Raises:
        ColumnNotFoundError: The frame lacks one of them.
        BadArgumentError: None are requested, or two would have the same name.
    """
    names = new_names(columns, df.columns)
    return df.select(*(quoted(old).alias(new) for old, new in names.items()))


def shuffled(df: DataFrame, *, seed: int) -> DataFrame:
    """Return the rows in an order that depends only on their contents and the seed.

    Rows are ordered by a hash of their values, not by random numbers drawn one after another: so
    a stage that Spark has to run again, over rows that come in another order, loses and repeats
    none, and the result does not depend on how the rows were partitioned before.
    """
    found = [_hashable(field) for field in df.schema.fields]
    columns = [column for column in found if column is not None]
    keyed = df.withColumn(_KEY, sf.xxhash64(sf.lit(seed), *columns))
    # Spark's hash passes over nulls, so the rows (1, null) and (null, 1) have the same.
    ordered = keyed.repartition(sf.col(_KEY)).sortWithinPartitions(_KEY, *columns)
    return ordered.drop(_KEY)


def quoted(name: str) -> Column:
    """Return the column of exactly this name, dots and all."""
    return sf.col("`" + name.replace("`", "``") + "`")


def _hashable(field: spark.StructField) -> Column | None:
    column = quoted(field.name)
    if isinstance(field.dataType, spark.MapType) and not _holds_map(field.dataType.valueType):
        # Spark hashes no maps; their entries, in the order they have, it does.
        return sf.map_entries(column)
    return None if _holds_map(field.dataType) else column


def _holds_map(kind: spark.DataType) -> bool:
    if isinstance(kind, spark.MapType):
        return True
    if isinstance(kind, spark.ArrayType):
        return _holds_map(kind.elementType)
    if isinstance(kind, spark.StructType):
        return any(_holds_map(field.dataType) for field in kind.fields)
    return False
