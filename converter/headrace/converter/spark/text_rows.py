"""Files of text as rows of Spark: its tasks read the pieces that one machine would read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.converter.columns.type_names import named_type
from headrace.converter.progress.progress import Progress
from headrace.converter.samples.function import Function
from headrace.converter.sources.pieces import ReadPieces, selected
from headrace.converter.text.declared import read_types
from headrace.converter.text.options import TextKind, TextOptions
from headrace.converter.text.refused import LeftOut
from headrace.converter.text.survey import text_pieces
from headrace.errors import BadArgumentError
from headrace.storage import StoreOptions, options_with_environment

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def rows_on_spark(
    spark: SparkSession,
    source: str,
    kind: TextKind,
    *,
    how: TextOptions,
    settings: Mapping[str, Any],
    progress: Callable[[Progress], None] | None = None,
) -> tuple[DataFrame, dict[str, Any], LeftOut]:
    """Check all records here, and return rows and settings for `write_shards`, and what is left.

    Args:
        spark: The session.
        source: The files, as the driver and the executors see them.
        kind: Their kind.
        how: They are read.
        settings: The settings for `write_shards`.
        progress: Told a few times a second how much is checked.

    Raises:
        BadArgumentError: As `text_pieces`; or the rows are to be shuffled, and Spark lacks the
            type of a column.
    """
    types = {name: named_type(text, column=name) for name, text in settings["write"].types.items()}
    pieces = text_pieces(
        source,
        kind,
        how=how,
        types=read_types(types, settings["columns"]),
        options=options_with_environment(settings.get("options") or StoreOptions()),
        progress=progress,
    )
    chosen = selected(pieces, settings["columns"])
    read = ReadPieces(chosen)
    numbers = spark.range(0, chosen.count, 1, chosen.count)
    changed = {**settings, "columns": None}
    if settings["shuffle_seed"] is None:
        changed["function"] = Function(read, chosen.schema)
        return numbers, changed, pieces.left_out
    return numbers.mapInArrow(read, _spark_schema(chosen.schema)), changed, pieces.left_out


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.errors import PySparkException  # noqa: PLC0415 - only with Spark
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    try:
        return from_arrow_schema(schema, prefer_timestamp_ntz=True)
    except (PySparkException, TypeError) as error:
        raise BadArgumentError(
            f"Spark lacks a type of {schema.names}: {error}; leave --master out, or choose another "
            "type with --type",
            field="shuffle_seed",
        ) from error
