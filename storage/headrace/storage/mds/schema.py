"""Combine the schemas of shards: the type of a column in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedColumnError
from headrace.storage.mds.arrays import ArrayType
from headrace.storage.mds.arrow import Array, Field, is_bytes, is_text, item_type, nulls_of
from headrace.storage.mds.fields import arrow_field
from headrace.storage.mds.shard_schema import ShardSchema


def dataset_schema(
    schemas: Sequence[ShardSchema], *, arrays: Mapping[str, ArrayType], wide: bool
) -> pa.Schema:
    """Return the common schema of all shards, with columns sorted by name.

    A column that some shards lack is nullable. A column with several types gets the smallest type
    that represents all values.

    Args:
        schemas: The schemas of the shards.
        arrays: The properties found in samples for columns whose arrays store their own type.
        wide: Use 64-bit offsets.

    Raises:
        UnsupportedColumnError: No single type represents a column's values.
    """
    fields: dict[str, Field] = {}
    counts: dict[str, int] = {}
    for schema in schemas:
        for name, encoding in zip(schema.names, schema.encodings, strict=True):
            field = arrow_field(name, encoding, arrays=arrays.get(name), wide=wide)
            fields[name] = _merged(fields[name], field) if name in fields else field
            counts[name] = counts.get(name, 0) + 1
    return pa.schema(
        [fields[name].with_nullable(counts[name] < len(schemas)) for name in sorted(fields)]
    )


def conformed(columns: Mapping[str, Array], schema: pa.Schema, sample_count: int) -> pa.RecordBatch:
    """Convert the columns of one shard to the schema of the dataset.

    Args:
        columns: The columns by name, all of them in ``schema``.
        schema: The result of `dataset_schema`.
        sample_count: Samples of the batch.
    """
    arrays = [
        _cast(columns[field.name], field.type)
        if field.name in columns
        else nulls_of(field.type, sample_count)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _merged(one: Field, other: Field) -> Field:
    if one.equals(other, check_metadata=True):
        return one
    kind = one.type if one.type == other.type else _common_type(one.type, other.type)
    if kind is None:
        raise UnsupportedColumnError(
            f"column {one.name!r} is {one.type} in some shards and {other.type} in others, and no "
            "type represents both; write the dataset again",
            column=one.name,
        )
    # Metadata that differ do not apply to the column as a whole.
    metadata = {
        key: value
        for key, value in (one.metadata or {}).items()
        if (other.metadata or {}).get(key) == value
    }
    return pa.field(one.name, kind, nullable=False, metadata=metadata)


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    both = (one, other)
    if all(_is_number(kind) for kind in both):
        return _common_number(one, other)
    for wider, narrower in (both, both[::-1]):
        if is_bytes(wider) and (is_bytes(narrower) or is_text(narrower)):
            return wider
        if _is_list(wider) and _is_list(narrower) and item_type(wider) == item_type(narrower):
            ragged = narrower if pa.types.is_fixed_size_list(wider) else wider
            return pa.list_(ragged.value_field) if pa.types.is_fixed_size_list(ragged) else ragged
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that represents both exactly."""
    dtype = np.promote_types(one.to_pandas_dtype(), other.to_pandas_dtype())
    are_floats = {pa.types.is_floating(one), pa.types.is_floating(other)}
    # NumPy combines int64 with uint64, and integers with floats, to floats, which rounds.
    if len(are_floats) == 2 or (dtype.kind == "f" and are_floats != {True}):  # noqa: PLR2004
        return None
    return pa.from_numpy_dtype(dtype)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _cast(array: Array, kind: pa.DataType) -> Array:
    return array if array.type == kind else pc.cast(array, kind)
