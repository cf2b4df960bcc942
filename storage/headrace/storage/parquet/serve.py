"""Convert row groups to the schema of their dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ConfigurationError, UnsupportedColumnError
from headrace.storage.parquet.plain_types import plain_array, plain_type
from headrace.storage.parquet.row_groups import MAX_ROW_GROUP_BYTES

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Scalar = pa.Scalar[Any]


@dataclass(frozen=True, slots=True)
class ServedColumn:
    """How one column is served; asking Arrow for this at each block took longer than converting it.

    Attributes:
        name: Its name for readers.
        stored_name: Its name in files.
        served: Its type.
        stored: Its type with the field names of files.
        nullable: Whether it may contain nulls.
        is_primitive: Whether its values have a fixed width.
    """

    name: str
    stored_name: str
    served: pa.DataType
    stored: pa.DataType
    nullable: bool
    is_primitive: bool


def column_plans(schema: pa.Schema, physical: pa.Schema) -> tuple[ServedColumn, ...]:
    """Return how the columns of a dataset are served.

    Args:
        schema: The columns as readers see them.
        physical: The same columns with the files' names.
    """
    return tuple(
        ServedColumn(
            name=served.name,
            stored_name=stored.name,
            served=served.type,
            stored=stored.type,
            nullable=served.nullable,
            is_primitive=pa.types.is_primitive(served.type),
        )
        for served, stored in zip(schema, physical, strict=True)
    )


def served_batch(
    table: pa.Table,
    plans: Sequence[ServedColumn],
    *,
    schema: pa.Schema,
    constants: Mapping[str, Scalar],
    file: str,
    is_by_id: bool = False,
) -> pa.RecordBatch:
    """Return a row group with the schema of its dataset.

    Args:
        table: The result of `read_row_group`.
        plans: The plan of each column.
        schema: The columns as readers see them.
        constants: The values of columns that are not in the file.
        file: The name of the file, for errors.
        is_by_id: Whether a column that is in the file has its values from there, also if it has a
            constant: the table may have been divided by it since.

    Raises:
        UnsupportedColumnError: A value does not fit the type of its column.
        ConfigurationError: A dictionary expands to more than fits into a block.
        ValueError: A column that is not nullable contains nulls, or text is not UTF-8.
    """
    places = {name: place for place, name in enumerate(table.schema.names)}
    columns = []
    for plan in plans:
        place = places.get(plan.stored_name, -1)
        if plan.name in constants and not (is_by_id and place >= 0):
            value: Any = constants[plan.name]
            column: Array = pa.repeat(value, table.num_rows)
        elif place >= 0:
            column = _column(table.column(place), plan, file)
        else:
            kind: Any = plan.served
            column = pa.nulls(table.num_rows, kind)
        if column.null_count and not plan.nullable:
            count = column.null_count
            raise ValueError(f"column {plan.name!r} contains {count} nulls, none expected")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(column: pa.ChunkedArray[Any], plan: ServedColumn, file: str) -> Array:
    _check_dictionary(column, plan, file)
    try:
        whole = plain_array(column, plan.stored)
    except pa.ArrowException as error:
        raise UnsupportedColumnError(
            f"column {plan.name!r} is {plain_type(column.type)} in file {file} but {plan.served} "
            f"in the dataset, and a value does not fit: {error}; write the file again",
            column=plan.name,
            shard=file,
        ) from error
    if plan.is_primitive:
        return whole
    try:
        whole.validate(full=True)  # Arrow's reader does not check whether text is UTF-8
    except pa.ArrowException as error:
        raise ValueError(f"column {plan.name!r}: {error}") from error
    if plan.stored == plan.served:
        return whole
    renamed: Array = whole.view(plan.served)
    return renamed


def _check_dictionary(column: pa.ChunkedArray[Any], plan: ServedColumn, file: str) -> None:
    if not isinstance(column.type, pa.DictionaryType) or pa.types.is_primitive(
        column.type.value_type
    ):
        return
    size = sum(_decoded_bytes(chunk) for chunk in column.chunks)
    if size > MAX_ROW_GROUP_BYTES:
        raise ConfigurationError(
            f"column {plan.name!r} of a row group of file {file} has {size} bytes when its "
            f"dictionary is decoded, but a block may have at most {MAX_ROW_GROUP_BYTES}; write the "
            "file again with smaller row groups",
            column=plan.name,
            shard=file,
        )


def _decoded_bytes(chunk: Any) -> int:
    lengths = pc.binary_length(chunk.dictionary)
    return int(pc.sum(pc.cast(lengths.take(chunk.indices), pa.int64())).as_py() or 0)
