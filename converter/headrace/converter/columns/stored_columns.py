"""Convert the columns of a DataFrame to columns of a shard."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.converter.columns.checked_cast import checked_cast
from headrace.converter.columns.vectors import dense_lists
from headrace.errors import BadArgumentError
from headrace.storage import classes_of

if TYPE_CHECKING:
    # pyarrow's stubs have these generic, pyarrow itself has not.
    Array = pa.Array[Any]
    Field = pa.Field[Any]


@dataclass(frozen=True, slots=True)
class ColumnPlan:
    """The plan of a task for one column. Picklable.

    Attributes:
        field: The column as stored in shards; always nullable.
        shape: The shape of each sample's tensor, or `None` for plain values and for lists without a
            declared length.
        is_vector: Whether values come as vectors of Spark's ML package.
        class_count: The number of classes, if values are class numbers, else `None`.
    """

    field: Field
    shape: tuple[int, ...] | None = None
    is_vector: bool = False
    class_count: int | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        names = classes_of(self.field)
        object.__setattr__(self, "class_count", None if names is None else len(names))


def stored_batch(
    batch: pa.RecordBatch, plans: tuple[ColumnPlan, ...], *, first_sample: int
) -> pa.RecordBatch:
    """Return ``batch`` with the types of shards.

    Args:
        batch: The batch from Spark, one column per plan.
        plans: The plans of the columns, in the batch's order.
        first_sample: The number of earlier samples of the partition, for errors.

    Raises:
        BadArgumentError: A sample does not fit its declared shape or type, or has a null in an
            array.
    """
    columns = [
        _stored_column(column, plan, first_sample)
        for column, plan in zip(batch.columns, plans, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([plan.field for plan in plans]))


def _stored_column(column: Array, plan: ColumnPlan, first_sample: int) -> Array:
    stored = _typed_column(column, plan, first_sample)
    if plan.class_count is not None:
        _refuse_unknown_classes(stored, plan, plan.class_count, first_sample)
    return stored


def _refuse_unknown_classes(
    stored: Array, plan: ColumnPlan, class_count: int, first_sample: int
) -> None:
    """Refuse numbers without a class; -1 means no class, as in Hugging Face's datasets."""
    values: Array = stored
    while not pa.types.is_integer(values.type):
        assert isinstance(values, pa.ListArray | pa.LargeListArray | pa.FixedSizeListArray)
        values = values.flatten()
    if values.null_count == len(values):
        return
    least, most = int(pc.min(values).as_py()), int(pc.max(values).as_py())
    if least >= -1 and most < class_count:
        return
    wrong = most if least >= -1 else least
    raise BadArgumentError(
        f"column {plan.field.name!r}: the samples of a task from sample {first_sample} on contain "
        f"the number {wrong}, but there are {class_count} classes; expected [0, {class_count}), or "
        "-1 for none",
        field=plan.field.name,
    )


def _typed_column(column: Array, plan: ColumnPlan, first_sample: int) -> Array:
    if plan.is_vector:
        column = dense_lists(column)
    if plan.shape is not None:
        return _tensors(column, plan, first_sample)
    kind = plan.field.type
    # Lists of numbers have no nulls, so that those of one length can be served as tensors.
    if isinstance(column, pa.ListArray) and _is_list_without_nulls(kind):
        _refuse_inner_nulls(column, plan, first_sample)
    return checked_cast(column, kind, name=plan.field.name, first_sample=first_sample)


def _is_list_without_nulls(kind: pa.DataType) -> bool:
    # A map is a list to isinstance of its array, and not of its type.
    return isinstance(kind, pa.ListType) and not kind.value_field.nullable


def _tensors(column: Array, plan: ColumnPlan, first_sample: int) -> Array:
    """Return fixed-size lists or tensors of the values, null for null samples."""
    shape = plan.shape or ()
    size = math.prod(shape)
    storage = _storage_type(plan)
    values = _values(column, plan, first_sample)
    if values.type != storage.value_type:
        innermost = with_innermost(column.type, storage.value_type)
        cast = checked_cast(column, innermost, name=plan.field.name, first_sample=first_sample)
        values = _values(cast, plan, first_sample)
    lists: Array = pa.FixedSizeListArray.from_arrays(values, type=storage)  # type: ignore[call-overload] # the stubs lack a type given as a value
    if len(lists) * size != len(values):
        raise AssertionError(f"{len(values)} values for {len(lists)} tensors of {shape}")
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        lists = lists.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
    if isinstance(plan.field.type, pa.FixedShapeTensorType):
        return pa.ExtensionArray.from_storage(plan.field.type, lists)
    return lists


def _storage_type(plan: ColumnPlan) -> pa.FixedSizeListType[Any, Any]:
    kind = plan.field.type
    storage = kind.storage_type if isinstance(kind, pa.FixedShapeTensorType) else kind
    assert isinstance(storage, pa.FixedSizeListType), storage
    return storage


def _values(column: Array, plan: ColumnPlan, first_sample: int) -> Array:
    """Return the numbers of all samples that are not null, one after another."""
    shape = plan.shape or ()
    depth = _depth(column.type)
    sides = shape if depth == len(shape) else (math.prod(shape),)
    level: Array = column
    for number, side in enumerate(sides):
        assert isinstance(level, pa.ListArray), level.type
        if number:
            _refuse_nulls(level, column, plan, first_sample)
        lengths = level.drop_null().value_lengths().to_numpy()
        wrong = np.flatnonzero(lengths != side)
        if len(wrong):
            _refuse_length(column, plan, first_sample, found=int(lengths[wrong[0]]), wanted=side)
        level = level.flatten()
    _refuse_nulls(level, column, plan, first_sample)
    return level


def with_innermost(kind: pa.DataType, innermost: pa.DataType) -> pa.DataType:
    """Return a type of lists, of any depth, with another type of innermost values."""
    if not isinstance(kind, pa.ListType):
        return innermost
    return pa.list_(kind.value_field.with_type(with_innermost(kind.value_type, innermost)))


def _depth(kind: pa.DataType) -> int:
    depth = 0
    while isinstance(kind, pa.ListType):
        kind, depth = kind.value_type, depth + 1
    return depth


def _refuse_inner_nulls(column: pa.ListArray[Any], plan: ColumnPlan, first_sample: int) -> None:
    _refuse_nulls(column.flatten(), column, plan, first_sample)


def _refuse_nulls(values: Array, column: Array, plan: ColumnPlan, first_sample: int) -> None:
    if values.null_count:
        where = _first(column, _holds_null)
        raise BadArgumentError(
            f"column {plan.field.name!r}: sample {first_sample + where} of its task has a "
            "null inside its array; fill it (pyspark.sql.functions.transform and coalesce) or "
            "make the whole array null",
            field=plan.field.name,
        )


def _refuse_length(
    column: Array, plan: ColumnPlan, first_sample: int, *, found: int, wanted: int
) -> None:
    shape = plan.shape or ()
    where = _first(column, lambda sample: not _fits(sample, shape))
    raise BadArgumentError(
        f"column {plan.field.name!r}: sample {first_sample + where} of its task has an array of "
        f"length {found}, but the declared shape {shape} needs {wanted}; change all samples to one "
        f"shape, or declare shapes={{{plan.field.name!r}: 'ragged'}}",
        field=plan.field.name,
    )


def _first(column: Array, is_wrong: Callable[[object], bool]) -> int:
    """Return the first wrong sample; slow, and only called if there is one."""
    return next((index for index, sample in enumerate(column.to_pylist()) if is_wrong(sample)), 0)


def _holds_null(sample: object) -> bool:
    return isinstance(sample, list) and any(item is None or _holds_null(item) for item in sample)


def _fits(sample: object, shape: tuple[int, ...]) -> bool:
    flat = (math.prod(shape),)
    return sample is None or _has_sides(sample, shape) or _has_sides(sample, flat)


def _has_sides(value: object, sides: tuple[int, ...]) -> bool:
    if not sides or not isinstance(value, list):
        return not sides
    return len(value) == sides[0] and all(_has_sides(item, sides[1:]) for item in value)
