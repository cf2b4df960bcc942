"""Pass rows from Spark's JVM to a task in batches of limited size, at little cost.

Spark 4 limits the bytes of a batch by adding up all its buffers before every row. Measured with
Spark 4.3 on a table of six columns, this is two thirds of the cost of passing rows. Spark skips it
if the limit is the largest 32-bit number, and then only counts rows, as Spark 3.5 always does. So
the count is used to limit bytes:

1. A batch has at most R records (``spark.sql.execution.arrow.maxRecordsPerBatch``). Each stands
   for a share of `BATCH_BYTES`, ``BATCH_BYTES // R``.
2. A row that is larger than its share is followed by fillers, one for each share more, in which
   all that varies in size is null. So the rows of a batch have `BATCH_BYTES` at most, and the
   largest row more.
3. Fillers carry a mark in a last column; the task drops them and that column. Columns are renamed
   on the way, because Spark looks them up by name and takes a dot in a name for a field. The task
   restores their names.
4. This works only for types that Spark can size without looking at their items: numbers, texts,
   bytes, arrays of numbers, structs of these. Other rows are left to Spark's own limit.
5. A limit of bytes that the session sets stays in force, because it is set for the job as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BATCH_BYTES = 64 << 20  # Spark's default of spark.sql.execution.arrow.maxBytesPerBatch
_MAX_RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_MAX_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_UNBOUNDED = str(2**31 - 1)  # with this limit Spark does not count bytes
_MARK = "headrace_filler"
_WIDTHS: dict[type[spark.DataType], int] = {
    spark.NullType: 0,
    spark.BooleanType: 1,
    spark.ByteType: 1,
    spark.ShortType: 2,
    spark.IntegerType: 4,
    spark.FloatType: 4,
    spark.DateType: 4,
    spark.DecimalType: 16,
}
_OTHER_WIDTH = 8  # bytes of a long, a double, a timestamp or an interval
_NO_NUMBERS = (
    spark.StringType,
    spark.BinaryType,
    spark.ArrayType,
    spark.MapType,
    spark.StructType,
    spark.UserDefinedType,
)


@dataclass(frozen=True, slots=True)
class Handover:
    """The rows to pass to tasks.

    Attributes:
        df: The rows, with other names for columns; the last column may be the mark.
        names: The names of the columns.
        properties: The properties of the job, for Spark; Spark Connect has none.
    """

    df: DataFrame
    names: tuple[str, ...]
    properties: Mapping[str, str] = field(default_factory=dict)


def plain_handover(df: DataFrame) -> Handover:
    """Return the rows in Spark's own batches."""
    return Handover(df.toDF(*(f"c{at}" for at in range(len(df.columns)))), tuple(df.columns))


def bounded_handover(df: DataFrame, *, batch_bytes: int = BATCH_BYTES) -> Handover:
    """Return the rows in batches that cost Spark less, if Spark supports them.

    Args:
        df: The rows, of a classic session.
        batch_bytes: The maximum size of a batch's rows, except for the last row.
    """
    plain = plain_handover(df)
    parts = plain.df.schema.fields
    fixed = sum(_fixed_bytes(part.dataType) for part in parts)
    variable = [_variable_bytes(sf.col(part.name), part.dataType) for part in parts]
    records = int(df.sparkSession.conf.get(_MAX_RECORDS) or 0)
    share = batch_bytes // records if records > 0 else 0
    if None in variable or fixed >= share:
        return plain
    varies = [bool(sizes) for sizes in variable]
    row_bytes = sf.lit(fixed).cast("long")
    for size in (size for sizes in variable for size in sizes or ()):
        row_bytes = row_bytes + size
    rows = _with_fillers(plain.df, varies, row_bytes, share) if any(varies) else plain.df
    return replace(plain, df=rows, properties={_MAX_BYTES: _UNBOUNDED})


def taken_over(batches: Iterator[pa.RecordBatch], names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in their original form.

    Args:
        batches: The batches from Spark.
        names: The names of their columns.
    """
    for batch in batches:
        rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names=list(names))
        if batch.num_columns > len(names):
            mark = batch.column(len(names))
            if mark.null_count < len(mark):
                rows = rows.filter(pa.array(mark.fill_null(0).to_numpy() == 0))
        if rows.num_rows:
            yield rows


def _with_fillers(
    df: DataFrame, varies: Sequence[bool], row_bytes: Column, share: int
) -> DataFrame:
    fillers = (row_bytes / sf.lit(share)).cast("int")
    # The row itself is number 0. A row without fillers has no numbers, and needs no array.
    numbers = sf.when(row_bytes >= share, sf.sequence(sf.lit(0), fillers))
    numbered = df.select("*", sf.explode_outer(numbers).alias(_MARK))
    mark = sf.col(_MARK)
    is_row = mark.isNull() | (mark == 0)
    columns = zip(df.columns, varies, strict=True)
    return numbered.select(
        *(sf.when(is_row, sf.col(name)).alias(name) if vary else name for name, vary in columns),
        mark,
    )


def _fixed_bytes(kind: spark.DataType) -> int:
    """Return the bytes of the numbers in a value."""
    if isinstance(kind, spark.StructType):
        return sum(_fixed_bytes(part.dataType) for part in kind.fields)
    return 0 if isinstance(kind, _NO_NUMBERS) else _WIDTHS.get(type(kind), _OTHER_WIDTH)


def _variable_bytes(column: Column, kind: spark.DataType) -> list[Column] | None:
    """Return what a value adds to that, in parts; `None` if only its items tell."""
    if isinstance(kind, (spark.StringType, spark.BinaryType)):
        return [_count(sf.octet_length(column))]
    if isinstance(kind, spark.ArrayType) and not isinstance(kind.elementType, _NO_NUMBERS):
        return [_count(sf.size(column)) * max(1, _fixed_bytes(kind.elementType))]
    if isinstance(kind, spark.StructType):
        parts = [_variable_bytes(column.getField(part.name), part.dataType) for part in kind.fields]
        return None if None in parts else [size for sizes in parts for size in sizes or ()]
    return None if isinstance(kind, _NO_NUMBERS) else []


def _count(number: Column) -> Column:
    # The size of a null is null, or -1 (spark.sql.legacy.sizeOfNull).
    return sf.greatest(sf.coalesce(number, sf.lit(0)), sf.lit(0)).cast("long")
