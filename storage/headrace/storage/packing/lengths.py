"""Read how long the documents of a dataset are, block after block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage.source.source import OpenDataset

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
Part = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Lengths of documents, and their bytes in memory."""

# Of blocks of a megabyte, so that little memory is held.
_AHEAD = 8


def document_column(schema: pa.Schema, name: str | None) -> str:
    """Return the column that holds documents: the one named, or the only list there is.

    Raises:
        ColumnNotFoundError: There is none of that name.
        BadArgumentError: It holds no lists of numbers, or there is not one list alone.
    """
    if name is not None:
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {', '.join(schema.names)}", column=name
            )
        if not _is_list(schema.field(name).type):
            raise BadArgumentError(
                f"column {name!r} is {schema.field(name).type}; expected lists of numbers",
                field="column",
            )
        return name
    lists = [field.name for field in schema if _is_list(field.type)]
    if len(lists) != 1:
        raise BadArgumentError(
            f"{len(lists)} columns hold lists of numbers ({', '.join(lists)}); name the one whose "
            "documents are packed with --column",
            field="column",
        )
    return lists[0]


def read_lengths(
    dataset: OpenDataset,
    columns: Sequence[str],
    *,
    first_sample: int,
    threads: Executor,
    progress: Callable[[int], None],
) -> Iterator[Part]:
    """Yield the lengths of documents and their bytes in memory, from one of them on.

    Args:
        dataset: The dataset.
        columns: The column of documents, and others whose rows must be as long.
        first_sample: The first document that is wanted.
        threads: Read blocks.
        progress: Called with the blocks read.

    Raises:
        BadArgumentError: A row of another column is not as long; names the sample.
    """
    if first_sample >= dataset.sample_count:
        return
    blocks, _ = dataset.locate(np.array([first_sample]))
    numbers = range(int(blocks[0]), dataset.block_count)
    for done, part in enumerate(
        mapped(lambda block: _block_part(dataset, columns, block, first_sample), numbers, threads)
    ):
        progress(done + 1)
        yield part


def mapped(
    function: Callable[[_Item], _Made], items: Iterable[_Item], threads: Executor
) -> Iterator[_Made]:
    """Yield what a function makes of items, in their order, made a few ahead of need."""
    waiting: deque[Future[_Made]] = deque()
    try:
        for item in items:
            waiting.append(threads.submit(function, item))
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _block_part(
    dataset: OpenDataset, columns: Sequence[str], block: int, first_sample: int
) -> Part:
    first, last = dataset.block_sample_range(block)
    read = dataset.read_block(block)
    lengths = [_list_lengths(read.column(name)) for name in columns]
    for name, others in zip(columns[1:], lengths[1:], strict=True):
        unequal = np.flatnonzero(others != lengths[0])
        if unequal.size:
            row = int(unequal[0])
            raise BadArgumentError(
                f"sample {first + row} has {lengths[0][row]} elements in {columns[0]!r} and "
                f"{others[row]} in {name!r}; columns that are packed alike have equal lengths",
                field="alike",
            )
    raw = int(dataset.block_raw_bytes(np.array([block]))[0])
    edges = raw * np.arange(last - first + 1) // max(last - first, 1)
    own = slice(max(0, first_sample - first), None)
    return lengths[0][own], np.diff(edges)[own]


def _list_lengths(column: pa.Array[Any]) -> NDArray[np.int64]:
    if pat.is_fixed_size_list(column.type):
        found = np.full(len(column), column.type.list_size, np.int64)
        if column.null_count:
            found[np.asarray(column.is_null())] = 0
        return found
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return np.asarray(lengths.cast(pa.int64()))


def _is_list(kind: pa.DataType) -> bool:
    if not isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        return False
    item: pa.DataType = kind.value_type
    return pat.is_integer(item) or pat.is_floating(item)
