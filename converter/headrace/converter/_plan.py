"""Check the arguments of a conversion, and make of them what executors are to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

import pyarrow as pa

from headrace.converter._function import Function
from headrace.converter._schema import Declared, plan_columns
from headrace.converter._sinks import Format, Writing, mds_compression
from headrace.converter._splits import ByColumn, Splits, make_splitter
from headrace.converter._tasks import SamplePlan
from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage import CLASSES_KEY, DEFAULT_BLOCK_BYTES, Mode, StoreOptions, check_blocks
from headrace.storage.mds import DEFAULT_HASHES, check_columns, check_writing

if TYPE_CHECKING:
    from pyspark.sql import types as spark

DEFAULT_SHARD_BYTES = 64 << 20  # large enough that listing and opening cost nothing beside it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the caller of a conversion asked for, beside where from and where to.

    Attributes:
        columns: To keep of what is read, in this order; a mapping renames them, from old to new.
        declared: What is said of stored columns.
        function: Makes samples of rows.
        shuffle_seed: Of the order of rows; `None` leaves it.
        splits: What assigns samples to datasets; `None` where there is one.
        split_seed: Of splits by fraction.
        writing: How shards are written.
        mode: What to do where a dataset is.
        options: How to reach the store.
    """

    columns: Sequence[str] | Mapping[str, str] | None
    declared: Declared
    function: Function | None = None
    shuffle_seed: int | None = None
    splits: Splits | None
    split_seed: int
    writing: Writing
    mode: Mode
    options: StoreOptions


def checked_writing(
    file_format: Format,
    compression: str | None,
    *,
    level: int | None,
    hashes: Sequence[str] | None,
    shard_bytes: int,
    block_bytes: int | None,
) -> Writing:
    """Return how shards are to be written, with the defaults that follow from other arguments.

    Raises:
        BadArgumentError: An argument is outside its range.
    """
    if file_format not in get_args(Format):
        wanted = ", ".join(get_args(Format))
        raise BadArgumentError(f"format is {file_format!r}, wanted one of {wanted}", field="format")
    if file_format == "mds":
        stored = None if compression in {None, "none"} else compression
        taken = DEFAULT_HASHES if hashes is None else tuple(hashes)
        writing = Writing(file_format, stored, level, shard_bytes, DEFAULT_BLOCK_BYTES, taken)
        check_writing(compression=mds_compression(writing), hashes=taken, size_limit=shard_bytes)
        return writing
    if hashes:
        raise BadArgumentError(
            f"hashes is {list(hashes)!r}, which is for format='mds'; blocks of 'arrow' have "
            "checksums always, so leave it out",
            field="hashes",
        )
    chosen = compression or "lz4"
    if shard_bytes < 1:
        raise BadArgumentError(
            f"shard_bytes is {shard_bytes}, wanted 1 or more", field="shard_bytes"
        )
    in_block = min(DEFAULT_BLOCK_BYTES, shard_bytes) if block_bytes is None else block_bytes
    check_blocks(chosen, in_block, level)
    if shard_bytes < in_block:
        raise BadArgumentError(
            f"shard_bytes is {shard_bytes}, wanted at least block_bytes, {in_block}; leave "
            "block_bytes out to have it follow",
            field="shard_bytes",
        )
    return Writing(file_format, chosen, level, shard_bytes, in_block)


def plan_samples(schema: spark.StructType | pa.Schema, wanted: Wanted) -> SamplePlan:
    """Return what becomes of samples that have ``schema``.

    Raises:
        UnsupportedColumnError: A column cannot be stored.
        ColumnNotFoundError: A column is named that is not there.
        BadArgumentError: Arguments do not make sense, alone or together.
    """
    splits, declared = wanted.splits, wanted.declared
    splitter = None if splits is None else make_splitter(splits, seed=wanted.split_seed)
    if isinstance(splitter, ByColumn):
        labels = {*declared.classes, *_noted_labels(schema)}
        declared = _with_split(declared, splitter.column, schema.names, labels)
    plan = SamplePlan(plan_columns(schema, declared), wanted.writing, splitter)
    if wanted.writing.format == "mds":
        check_columns(plan.schema)
    return plan


def _noted_labels(schema: spark.StructType | pa.Schema) -> list[str]:
    """Return the columns that come with the names of classes."""
    if not isinstance(schema, pa.Schema):
        return []
    return [field.name for field in schema if CLASSES_KEY in (field.metadata or {})]


def _with_split(
    declared: Declared, column: str, names: list[str], labels: AbstractSet[str]
) -> Declared:
    if column not in names:
        raise ColumnNotFoundError(
            f"splits names the column {column!r}, the samples have {', '.join(names)}",
            column=column,
        )
    if len(names) == 1:
        raise BadArgumentError(
            f"the samples have no column beside {column!r}, which names their split",
            field="splits",
        )
    if column in declared.classes:
        raise BadArgumentError(
            f"splits names the column {column!r}, whose values are numbers of classes; wanted a "
            "column that holds the names of splits",
            field="splits",
        )
    if column in labels:
        raise BadArgumentError(
            f"splits names the column {column!r}, whose values are numbers of classes; wanted a "
            "column that holds the names of splits",
            field="splits",
        )
    return replace(declared, types={**declared.types, column: pa.string()})
