"""Apply a user's function between the DataFrame and the shards.

Contract of `run_function`:

1. Success: the function's samples, in its order, with its declared schema, in batches of a size
   that is worth writing, whatever sizes it yields.
2. Failure of the function: an error with its traceback, the partition and the rows that it had
   been given last. What fails while rows are read for it is passed on as it is.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import pyarrow as pa

from headrace.converter.columns.checked_cast import checked_cast
from headrace.converter.columns.kept_values import first_altered
from headrace.errors import BadArgumentError, HeadraceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Over = Literal["arrow", "pandas", "rows"]

_ROWS = 1000  # rows made into one batch at most: a batch costs some 50 us
_ROW_BYTES = 8 << 20  # and of the texts and bytes in them: a batch is held twice for a moment
_LARGE_BYTES = 512 << 10  # of a batch that costs more to join with others than to write alone
_SHOWN = 60  # characters of a value in an error
_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_TRACE = 4000  # characters of a traceback in an error


@dataclass(frozen=True, slots=True)
class Function:
    """A function that converts rows before they are written. Picklable if ``call`` is.

    Attributes:
        call: Takes an iterator, and yields `pyarrow.RecordBatch`, `pandas.DataFrame`, or mappings
            from column to value, one per row. It is called once per partition, so costly objects
            are made once, and it may yield more or fewer rows than it takes.
        schema: The schema of its results: Spark's (``"tokens array<int>, label int"`` or a
            `StructType`), or Arrow's, which has types that Spark lacks.
        over: The type that it takes and yields: ``arrow`` (fastest), ``pandas`` or ``rows``.
    """

    call: Callable[[Iterator[Any]], Iterable[Any]]
    schema: str | StructType | pa.Schema
    over: Over = "arrow"

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise BadArgumentError(f"call is {self.call!r}, expected a function", field="function")
        if self.over not in get_args(Over):
            wanted = ", ".join(get_args(Over))
            raise BadArgumentError(
                f"over is {self.over!r}, expected one of {wanted}", field="function"
            )


@dataclass(frozen=True, slots=True)
class FunctionPlan:
    """A function as run by a task. Picklable.

    Attributes:
        call: The function.
        over: The type that it takes and yields.
        schema: The schema that its batches must have.
    """

    call: Callable[[Iterator[Any]], Iterable[Any]]
    over: Over
    schema: pa.Schema


def run_function(
    plan: FunctionPlan, batches: Iterator[pa.RecordBatch], *, partition: int
) -> Iterator[pa.RecordBatch]:
    """Yield the results of the function for ``batches``.

    Args:
        plan: The function.
        batches: The batches of one partition.
        partition: The partition's number, for errors.

    Raises:
        BadArgumentError: The function raised, or yielded something that does not match its schema.
    """
    feed = _Feed(batches, per_row=plan.over == "rows")
    given: Iterator[Any] = feed.rows() if plan.over == "rows" else iter(feed)
    if plan.over == "pandas":
        given = (batch.to_pandas() for batch in given)
    try:
        made = plan.call(given)
        if plan.over == "rows":
            yield from _batches_of_rows(made, plan.schema)
        else:
            yield from _joined(_as_schema(item, plan, first) for first, item in _numbered(made))
    except HeadraceError:
        raise
    except Exception as error:
        if error is feed.failure:
            raise
        raise _failed(error, feed, partition) from error


class _Feed:
    """Batches passed to a function, which remembers the last ones for errors."""

    def __init__(self, batches: Iterator[pa.RecordBatch], *, per_row: bool) -> None:
        self.failure: Exception | None = None
        self.first = 0
        self.stop = 0
        self._batches = batches
        self._per_row = per_row

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            try:
                batch = next(self._batches, None)
            except Exception as error:
                self.failure = error
                raise
            if batch is None:
                return
            if not self._per_row:
                self.first, self.stop = self.stop, self.stop + batch.num_rows
            yield batch

    def rows(self) -> Iterator[Mapping[str, Any]]:
        for batch in self:
            for row in batch.to_pylist(maps_as_pydicts="strict"):
                self.first, self.stop = self.stop, self.stop + 1
                yield row

    @property
    def place(self) -> str:
        if not self.stop:
            return "before its first row"
        if self.stop - self.first == 1:
            return f"at row {self.first}"
        return f"in rows {self.first} to {self.stop - 1}"


def _failed(error: Exception, feed: _Feed, partition: int) -> BadArgumentError:
    lines = traceback.format_exception(error)
    text = "".join(lines)[-_TRACE:].rstrip()
    return BadArgumentError(
        f"the function failed {feed.place} of partition {partition}: {type(error).__name__}: "
        f"{error}; nothing was written\n{text}",
        field="function",
        partition=partition,
        row=feed.first,
    )


def _numbered(made: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    count = 0
    for item in made:
        yield count, item
        count += len(item) if hasattr(item, "__len__") else 0


def _as_schema(item: Any, plan: FunctionPlan, first_sample: int) -> pa.RecordBatch:
    batch = _as_batch(item, plan, first_sample)
    missing = [name for name in plan.schema.names if name not in batch.schema.names]
    if missing or len(batch.schema.names) != len(plan.schema.names):
        raise BadArgumentError(
            f"the function yielded the columns {', '.join(batch.schema.names)}, but its schema has "
            f"{', '.join(plan.schema.names)}",
            field="function",
        )
    columns = [
        _as_type(batch.column(field.name), field, first_sample=first_sample)
        for field in plan.schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)


def _as_batch(item: Any, plan: FunctionPlan, first_sample: int) -> pa.RecordBatch:
    if plan.over == "arrow" and isinstance(item, pa.RecordBatch):
        return item
    pandas = sys.modules.get("pandas")
    if plan.over == "pandas" and pandas is not None and isinstance(item, pandas.DataFrame):
        known = [field for field in plan.schema if field.name in item.columns]
        try:
            batch = pa.RecordBatch.from_pandas(item, schema=pa.schema(known), preserve_index=False)
        except _UNFIT:
            for field in known:
                _column(item[field.name].tolist(), field, first_sample, from_pandas=True)
            raise
        for field in known:
            _refuse_altered(
                item[field.name].tolist(), batch.column(field.name), field, first_sample
            )
        return batch
    wanted = "pyarrow.RecordBatch" if plan.over == "arrow" else "pandas.DataFrame"
    raise BadArgumentError(
        f"the function yielded {type(item).__name__}, expected {wanted} since it is over "
        f"{plan.over!r}",
        field="function",
    )


def _as_type(column: Any, field: Any, *, first_sample: int) -> Any:
    try:
        return checked_cast(column, field.type, name=field.name, first_sample=first_sample)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise BadArgumentError(
            f"the function yielded {column.type} for column {field.name!r}, but its schema has "
            f"{field.type}",
            field="function",
        ) from error


def _joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches, since writing one costs the same whatever its size."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        if not held and (batch.num_rows >= _ROWS or batch.nbytes >= _LARGE_BYTES):
            yield batch
            continue
        held.append(batch)
        if (
            sum(part.num_rows for part in held) >= _ROWS
            or sum(part.nbytes for part in held) >= _ROW_BYTES
        ):
            yield from _combined(held)
            held = []
    if held:
        yield from _combined(held)


def _combined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return one batch, or more if one cannot hold as many bytes."""
    if len(batches) == 1:
        return batches
    return pa.Table.from_batches(batches).combine_chunks().to_batches()


def _batches_of_rows(made: Iterable[Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    held: list[Mapping[str, Any]] = []
    size = first = 0
    for row in made:
        if not isinstance(row, Mapping) or row.keys() != set(schema.names):
            raise BadArgumentError(
                f"the function yielded {_shown(row)}, expected a mapping with the columns of its "
                f"schema, {', '.join(schema.names)}",
                field="function",
            )
        held.append(row)
        # Arrays and tensors without a dimension have a length that raises.
        sized = (value for value in row.values() if hasattr(value, "__len__"))
        size += sum(len(value) for value in sized if getattr(value, "ndim", 1))
        if len(held) >= _ROWS or size >= _ROW_BYTES:
            yield _batch_of_rows(held, schema, first)
            first, held, size = first + len(held), [], 0
    if held:
        yield _batch_of_rows(held, schema, first)


def _shown(row: object) -> str:
    if isinstance(row, Mapping):
        return f"a mapping with {', '.join(map(str, row))}"
    return type(row).__name__


def _batch_of_rows(
    rows: list[Mapping[str, Any]], schema: pa.Schema, first_row: int
) -> pa.RecordBatch:
    columns = [_column([row[field.name] for row in rows], field, first_row) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(values: list[Any], field: Any, first_row: int, *, from_pandas: bool = False) -> Any:
    make = partial(pa.array, type=field.type, from_pandas=from_pandas)
    try:
        column = make(values)
    except _UNFIT as error:
        at = next((at for at, value in enumerate(values) if _is_unfit(value, make)), 0)
        raise _unfit(field, first_row + at, values[at], str(error)) from error
    _refuse_altered(values, column, field, first_row)
    return column


def _refuse_altered(values: Sequence[Any], column: Any, field: Any, first_row: int) -> None:
    found = first_altered(values, column)
    if found is not None:
        at, loss = found
        raise _unfit(field, first_row + at, values[at], loss)


def _is_unfit(value: object, make: Callable[[list[object]], object]) -> bool:
    try:
        make([value])
    except _UNFIT:
        return True
    return False


def _unfit(field: Any, row: int, value: object, why: str) -> BadArgumentError:
    text = repr(value)
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return BadArgumentError(
        f"the function yielded {shown} for column {field.name!r} in its row {row}, which its type "
        f"{field.type} cannot represent: {why}; convert the value in the function, or give the "
        "column another type in its schema",
        field="function",
        row=row,
    )
