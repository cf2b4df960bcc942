"""Plan the conversion of a DataFrame: the rows for tasks, and what tasks do with them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import types as spark

from headrace.converter.columns.spark_types import arrow_type, is_vector
from headrace.converter.plan.plan import WantedConversion, plan_samples
from headrace.converter.samples.function import Function, FunctionPlan
from headrace.converter.spark.select_rows import select_columns, shuffled
from headrace.converter.tasks.shard_task import SamplePlan
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def plan_rows(df: DataFrame, wanted: WantedConversion) -> tuple[DataFrame, SamplePlan]:
    """Return the rows for tasks, and what tasks do with them.

    Raises:
        UnsupportedColumnError: A column cannot be stored.
        ColumnNotFoundError: A named column does not exist.
        BadArgumentError: Arguments are invalid or contradict one another.
    """
    rows = df if wanted.columns is None else select_columns(df, wanted.columns)
    if wanted.shuffle_seed is not None:
        rows = shuffled(rows, seed=wanted.shuffle_seed)
    function = None if wanted.function is None else _plan_function(wanted.function, rows)
    plan = plan_samples(rows.schema if function is None else function.schema, wanted)
    return rows, replace(plan, function=function, vectors=_vectors(rows.schema))


def _plan_function(function: Function, rows: DataFrame) -> FunctionPlan:
    for field in rows.schema.fields:
        if not is_vector(field.dataType):
            arrow_type(field.name, field.dataType)  # refuses what cannot be handed over
    schema = function.schema
    if not isinstance(schema, pa.Schema):
        parsed = _parsed(schema, rows.sparkSession)
        schema = pa.schema([pa.field(f.name, arrow_type(f.name, f.dataType)) for f in parsed])
    return FunctionPlan(function.call, function.over, schema)


def _parsed(schema: str | spark.StructType, session: SparkSession) -> spark.StructType:
    if isinstance(schema, spark.StructType):
        return schema
    try:
        # `StructType.fromDDL` came with Spark 4.
        return session.createDataFrame([], schema).schema
    except Exception as error:
        raise BadArgumentError(
            f"the function's schema is {schema!r}, expected columns such as 'tokens array<int>, "
            f"label int': {str(error).splitlines()[0]}",
            field="function",
        ) from error


def _vectors(schema: spark.StructType) -> tuple[int, ...]:
    return tuple(at for at, field in enumerate(schema.fields) if is_vector(field.dataType))
