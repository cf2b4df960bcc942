"""Statistics of columns, and the schema that follows from them.

A shard is written before its whole dataset is known. So shards have a *stored* schema, in which
every column may hold nulls, and a list of numbers without a declared length is a list. The
manifest's *served* schema is narrower: a column without nulls is not nullable, and a list that has
the same length in every sample is a fixed-size list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.errors import BadArgumentError
from headrace.storage.shard.buffers import offsets_of
from headrace.storage.shard.classes import (
    classes_of,
    merged_classes,
    with_classes,
    without_classes,
)

if TYPE_CHECKING:
    # Generic only in pyarrow's stubs.
    Array = pa.Array[Any]
    Field = pa.Field[Any]

SHAPE_KEY = b"headrace.shape"
SHAPE_AUTO = b"auto"
"""Metadata of a stored list field: serve it as a fixed-size list if all lengths are equal."""

FORMAT_KEY = b"headrace.format"
"""Metadata of a field: what its values mean, if the type does not say so.

``bfloat16`` for uint16 that hold the upper halves of float32; ``jpeg``, ``png`` and so on for
binary values that are encoded images. Readers receive it with the column.
"""


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """Nulls and list lengths of one column.

    Attributes:
        null_count: Samples without a value.
        shortest: Items of the shortest list, or `None` without lists.
        longest: Items of the longest list, or `None` without lists.
    """

    null_count: int = 0
    shortest: int | None = None
    longest: int | None = None

    def merged(self, other: ColumnStats) -> ColumnStats:
        """Return the statistics of both parts together."""
        lengths = [
            length
            for length in (self.shortest, self.longest, other.shortest, other.longest)
            if length is not None
        ]
        return ColumnStats(
            null_count=self.null_count + other.null_count,
            shortest=min(lengths, default=None),
            longest=max(lengths, default=None),
        )


def stats_of(array: Array) -> ColumnStats:
    """Return the statistics of ``array``."""
    if not isinstance(array, pa.ListArray) or array.null_count == len(array):
        return ColumnStats(null_count=array.null_count)
    lengths = np.diff(offsets_of(array))
    if array.null_count:
        lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
    return ColumnStats(
        null_count=array.null_count, shortest=int(lengths.min()), longest=int(lengths.max())
    )


def served_schema(
    stored: pa.Schema, stats: tuple[ColumnStats, ...], *, before: pa.Schema | None = None
) -> pa.Schema:
    """Return the narrowest schema that holds for all blocks.

    Args:
        stored: The schema of the shards.
        stats: The statistics of the new shards, one a column.
        before: The served schema of the dataset that the shards are appended to.

    Raises:
        BadArgumentError: The new shards do not fit the dataset's schema.
    """
    fields = [
        _served_field(field, stats[index], before.field(index) if before else None)
        for index, field in enumerate(stored)
    ]
    return pa.schema(fields)


def joined_schema(before: pa.Schema, after: pa.Schema, *, place: str) -> pa.Schema | None:
    """Return the stored schema of a dataset after samples are appended to it.

    Columns, types and meanings of values must be equal, with two exceptions: new classes may follow
    the old ones, and a binary column loses its format if the new samples have another or an unknown
    one.

    Args:
        before: The stored schema of the dataset.
        after: The schema of the new samples.
        place: The place of the dataset, for the error.

    Returns:
        The schema, or `None` if the columns differ.

    Raises:
        BadArgumentError: A number stands for different classes.
    """
    if before.names != after.names:
        return None
    fields = [_joined_field(old, new, place) for old, new in zip(before, after, strict=True)]
    kept = [field for field in fields if field is not None]
    return pa.schema(kept) if len(kept) == len(fields) else None


def is_shard_schema(found: pa.Schema, stored: pa.Schema) -> bool:
    """Return whether a shard of a dataset may hold a schema.

    Shards keep the schema that they were written with. The stored schema of their dataset may have
    the format of a binary column that was found once all shards were written, lack one that later
    samples do not have, and have classes that were appended.

    Args:
        found: The schema in the shard.
        stored: The stored schema of the dataset.

    Raises:
        ValueError: The classes in the shard cannot be read.
    """
    if found.names != stored.names or found.metadata != stored.metadata:
        return False
    return all(_is_shard_field(ours, theirs) for ours, theirs in zip(found, stored, strict=True))


def _is_shard_field(found: Field, stored: Field) -> bool:
    if not _without_notes(found).equals(_without_notes(stored), check_metadata=True):
        return False
    formats = {_format_of(found), _format_of(stored)} - {None}
    if len(formats) > 1:
        return False
    some, names = classes_of(found), classes_of(stored)
    if some is None or names is None:
        return some is names
    return some == names[: len(some)]


def _joined_field(before: Field, after: Field, place: str) -> Field | None:
    if not _without_notes(before).equals(_without_notes(after), check_metadata=True):
        return None
    joined = before
    if _format_of(before) != _format_of(after):
        joined = _without(joined, FORMAT_KEY)
    old, new = classes_of(before), classes_of(after)
    if (old is None) != (new is None):
        return None  # numbers with names may differ from numbers without
    if old is None or new is None:
        return joined
    return with_classes(joined, merged_classes(old, new, column=before.name, place=place))


def _without_notes(field: Field) -> Field:
    """Return the part of a field that must be equal for values of two fields to go together."""
    return without_classes(_without(field, FORMAT_KEY) if _is_binary(field.type) else field)


def _without(field: Field, key: bytes) -> Field:
    metadata: dict[bytes | str, bytes | str] = {
        name: value for name, value in (field.metadata or {}).items() if name != key
    }
    return field.with_metadata(metadata) if metadata else field.remove_metadata()


def _format_of(field: Field) -> bytes | None:
    return (field.metadata or {}).get(FORMAT_KEY)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _served_field(field: Field, stats: ColumnStats, before: Field | None) -> Field:
    nullable = field.nullable and (stats.null_count > 0 or (before is not None and before.nullable))
    kind: pa.DataType = _served_type(field, stats)
    if before is not None and before.type != kind:
        kind = _type_after_append(field, kind, before)
    # Readers receive what values mean (`FORMAT_KEY`), but not how they were stored.
    metadata: dict[bytes | str, bytes | str] = {
        key: value for key, value in (field.metadata or {}).items() if key != SHAPE_KEY
    }
    return pa.field(field.name, kind, nullable, metadata=metadata or None)


def _served_type(field: Field, stats: ColumnStats) -> pa.DataType:
    kind: pa.DataType = field.type
    if (field.metadata or {}).get(SHAPE_KEY) != SHAPE_AUTO or stats.null_count:
        return kind
    if not stats.shortest or stats.shortest != stats.longest:
        return kind
    if not isinstance(kind, pa.ListType) or kind.value_field.nullable:
        return kind
    return pa.list_(pa.field("item", kind.value_type, nullable=False), stats.shortest)


def _type_after_append(field: Field, kind: pa.DataType, before: Field) -> pa.DataType:
    kept: pa.DataType = before.type
    if kept == field.type:
        return kept  # lengths vary already
    raise BadArgumentError(
        f"column {field.name!r} is {before.type} in the dataset but {kind} in the samples to "
        "append; change the samples to that length, or write a new dataset in which the column is "
        "declared ragged",
        field=field.name,
    )


class Narrowing:
    """Turns decoded blocks into batches of the served schema without copying values.

    What depends only on the two schemas is worked out once; otherwise each block would cost 30 us.

    Attributes:
        decoded: The schema to decode blocks with: the served column if it has the stored type, and
            the stored column otherwise.
    """

    def __init__(self, *, stored: pa.Schema, served: pa.Schema) -> None:
        same = [old.type == new.type for old, new in zip(stored, served, strict=True)]
        self.decoded = pa.schema(
            [new if kept else old for old, new, kept in zip(stored, served, same, strict=True)]
        )
        self._served = served
        self._converts = not all(same)
        # The decoder checks columns that are decoded as they are served.
        self._filled = [
            (index, new.name)
            for index, (new, kept) in enumerate(zip(served, same, strict=True))
            if not new.nullable and not kept
        ]

    def served(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a decoded block with the served schema.

        Raises:
            ValueError: A column of the block does not fit the served schema.
        """
        for index, name in self._filled:
            null_count = batch.column(index).null_count
            if null_count:
                raise ValueError(f"column {name!r} contains {null_count} nulls, none expected")
        if not self._converts:
            return batch
        columns = [
            _served_column(column, field)
            for column, field in zip(batch.columns, self._served, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._served)


def _served_column(column: Array, field: Field) -> Array:
    if column.type == field.type:
        return column
    if not isinstance(column, pa.ListArray) or not pa.types.is_fixed_size_list(field.type):
        raise ValueError(f"column {field.name!r} contains {column.type}, {field.type} expected")
    size = field.type.list_size
    offsets = offsets_of(column)
    if np.any(np.diff(offsets) != size):
        raise ValueError(f"column {field.name!r} contains a list of a length other than {size}")
    values = column.values.slice(int(offsets[0]), len(column) * size)
    if values.null_count:
        raise ValueError(f"column {field.name!r} contains a null inside a list, none expected")
    served: Array = pa.FixedSizeListArray.from_arrays(values, type=field.type)  # type: ignore[call-overload] # the stubs lack a type given as a value
    return served
