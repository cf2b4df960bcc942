"""Read the rows that a plan itself contains."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped] # py4j has no stubs
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from headrace.converter.keys.java import class_of, jvm_of


def rows_of(df: DataFrame, relation: Any) -> bytes | None:
    """Return the rows of a ``LocalRelation``, or None if Arrow has no type for them.

    Args:
        df: The DataFrame, whose session is used.
        relation: The leaf of its plan.
    """
    dataset: Any = jvm_of(df.sparkSession)
    for part in class_of(df._jdf).split("."):  # noqa: SLF001 - Spark's only way to a plan
        dataset = getattr(dataset, part)
    try:
        made = dataset.ofRows(df._jdf.sparkSession(), relation)  # noqa: SLF001 - as above
        batches = DataFrame(made, df.sparkSession)._collect_as_arrow()  # type: ignore[operator]  # noqa: SLF001
    except (Py4JError, PySparkException, pa.ArrowException, TypeError, ValueError):
        return None
    return _stream_of(batches)


def _stream_of(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    if batches:
        with pa.ipc.new_stream(sink, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
