"""Check the arguments of a conversion, and make the plan for executors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.converter.plan.schema import plan_columns
from headrace.converter.plan.write_options import WriteOptions
from headrace.converter.samples.function import Function
from headrace.converter.samples.splits import ByColumn, Splits, make_splitter
from headrace.converter.tasks.shard_task import SamplePlan
from headrace.converter.tasks.sinks import Writing
from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage import CLASSES_KEY, Mode, StoreOptions
from headrace.storage.mds import check_columns

if TYPE_CHECKING:
    from pyspark.sql import types as spark


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedConversion:
    """The options of a conversion, besides its source and target.

    Attributes:
        columns: The columns to keep, in this order; a mapping renames them, from old to new.
        write: How to store columns.
        function: Makes samples from rows.
        shuffle_seed: The seed of the order of rows; `None` keeps the order.
        spill_folder: The folder for temporary data of a shuffle without Spark; `None` is the
            system's.
        splits: Assigns samples to datasets; `None` for a single dataset.
        split_seed: The seed of splits by fraction.
        writing: How to write shards.
        mode: What to do if a dataset exists.
        options: The options of the store.
    """

    columns: Sequence[str] | Mapping[str, str] | None
    write: WriteOptions
    function: Function | None = None
    shuffle_seed: int | None = None
    spill_folder: str | None = None
    splits: Splits | None
    split_seed: int
    writing: Writing
    mode: Mode
    options: StoreOptions


def plan_samples(schema: spark.StructType | pa.Schema, wanted: WantedConversion) -> SamplePlan:
    """Return the plan for samples with ``schema``.

    Raises:
        UnsupportedColumnError: A column cannot be stored.
        ColumnNotFoundError: A named column does not exist.
        BadArgumentError: Arguments are invalid or contradict one another.
    """
    splits, declared = wanted.splits, wanted.write
    splitter = None if splits is None else make_splitter(splits, seed=wanted.split_seed)
    if isinstance(splitter, ByColumn):
        labels = {*declared.classes, *_noted_labels(schema)}
        declared = _with_split(declared, splitter.column, schema.names, labels)
    plan = SamplePlan(plan_columns(schema, declared), wanted.writing, splitter)
    if wanted.writing.format == "mds":
        check_columns(plan.schema)
    return plan


def _noted_labels(schema: spark.StructType | pa.Schema) -> list[str]:
    """Return the columns with class names."""
    if not isinstance(schema, pa.Schema):
        return []
    return [field.name for field in schema if CLASSES_KEY in (field.metadata or {})]


def _with_split(
    declared: WriteOptions, column: str, names: list[str], labels: AbstractSet[str]
) -> WriteOptions:
    if column not in names:
        raise ColumnNotFoundError(
            f"splits names the column {column!r}, but the samples have {', '.join(names)}",
            column=column,
        )
    if len(names) == 1:
        raise BadArgumentError(
            f"the samples have no column besides {column!r}, which names their split",
            field="splits",
        )
    if column in labels:
        raise BadArgumentError(
            f"splits names the column {column!r}, whose values are class numbers; expected a "
            "column with names of splits",
            field="splits",
        )
    return replace(declared, types={**declared.types, column: pa.string()})
