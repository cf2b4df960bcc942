"""Read the lengths of the documents of a dataset, block after block."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage.shard.list_lengths import is_number_list, list_lengths
from headrace.storage.source.source import OpenDataset
from headrace.storage.tokenizer.tokenizer import TextRefusedError, Tokenizer

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
Part = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Lengths of documents, and their sizes in memory in bytes."""

COST_LIMIT = 1 << 32
"""Four bytes store a cost."""

# The number of blocks of about a megabyte, so that little memory is used.
_AHEAD = 8


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """The columns of documents.

    Attributes:
        columns: The column of documents, and others whose rows must have the same lengths.
        tokenizer: Tokenizes the column, if it has texts; None for a column of lists.
        are_costs: Whether the column has whole numbers, each of which is a cost and no list.
    """

    columns: tuple[str, ...]
    tokenizer: Tokenizer | None = None
    are_costs: bool = False

    @property
    def digest(self) -> str:
        """Return the tokenizer's digest; empty without a tokenizer."""
        return "" if self.tokenizer is None else self.tokenizer.digest


def document_column(schema: pa.Schema, name: str | None, *, is_text: bool = False) -> str:
    """Return the column of documents: the one named, or the only possible one.

    Args:
        schema: The schema of the dataset.
        name: The column; None for the only one.
        is_text: Whether documents are texts, and not lists of numbers.

    Raises:
        ColumnNotFoundError: There is no column of that name.
        BadArgumentError: It does not contain documents, or there is not exactly one such column.
    """
    holds, what = (_is_text, "text") if is_text else (is_number_list, "lists of numbers")
    if name is not None:
        if name not in schema.names:
            raise ColumnNotFoundError(
                f"there is no column {name!r}; there are {', '.join(schema.names)}", column=name
            )
        if not holds(schema.field(name).type):
            raise BadArgumentError(
                f"column {name!r} is {schema.field(name).type}; expected {what}", field="column"
            )
        return name
    found = [field.name for field in schema if holds(field.type)]
    if not found:
        raise BadArgumentError(
            f"no column contains {what}; there are {', '.join(schema.names)}, and a column of text "
            "needs --tokenizer",
            field="column",
        )
    if len(found) > 1:
        raise BadArgumentError(
            f"{len(found)} columns contain {what} ({', '.join(found)}); name the one with the "
            "documents with --column",
            field="column",
        )
    return found[0]


def cost_column(schema: pa.Schema, name: str) -> str:
    """Return the name of a column of costs.

    Raises:
        ColumnNotFoundError: There is no column of that name.
        BadArgumentError: It has no whole numbers.
    """
    if name not in schema.names:
        raise ColumnNotFoundError(
            f"there is no column {name!r}; there are {', '.join(schema.names)}", column=name
        )
    kind = schema.field(name).type
    if not pat.is_integer(kind):
        raise BadArgumentError(f"column {name!r} is {kind}; expected whole numbers", field="cost")
    return name


def read_lengths(
    dataset: OpenDataset,
    documents: Documents,
    *,
    first_sample: int,
    threads: Executor,
    progress: Callable[[int], None],
) -> Iterator[Part]:
    """Yield the lengths of documents and their sizes in memory, from a given document on.

    Args:
        dataset: The dataset.
        documents: The columns of the documents.
        first_sample: The first document to read.
        threads: The threads that read blocks.
        progress: Called with the number of blocks read.

    Raises:
        BadArgumentError: A row of another column has a different length, a text cannot be
            tokenized, or a number is no cost; names the sample.
    """
    if first_sample >= dataset.sample_count:
        return
    blocks, _ = dataset.locate(np.array([first_sample]))
    numbers = range(int(blocks[0]), dataset.block_count)
    for done, part in enumerate(
        mapped(lambda block: _block_part(dataset, documents, block, first_sample), numbers, threads)
    ):
        progress(done + 1)
        yield part


def mapped(
    function: Callable[[_Item], _Made], items: Iterable[_Item], threads: Executor
) -> Iterator[_Made]:
    """Yield the results of a function for items, in order, computed a few ahead."""
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


def _block_part(dataset: OpenDataset, documents: Documents, block: int, first_sample: int) -> Part:
    columns = documents.columns
    first, last = dataset.block_sample_range(block)
    own = slice(max(0, first_sample - first), None)
    read = dataset.read_block(block)
    raw = int(dataset.block_raw_bytes(np.array([block]))[0])
    edges = raw * np.arange(last - first + 1) // max(last - first, 1)
    if documents.tokenizer is not None:
        column = read.column(columns[0])[own.start :]
        lengths = _token_counts(column, documents.tokenizer, columns[0], first + own.start)
        return lengths, np.diff(edges)[own]
    if documents.are_costs:
        costs = _costs(read.column(columns[0])[own.start :], columns[0], first + own.start)
        return costs, np.diff(edges)[own]
    lists = [list_lengths(read.column(name)) for name in columns]
    for name, others in zip(columns[1:], lists[1:], strict=True):
        unequal = np.flatnonzero(others != lists[0])
        if unequal.size:
            row = int(unequal[0])
            raise BadArgumentError(
                f"sample {first + row} has {lists[0][row]} elements in {columns[0]!r} but "
                f"{others[row]} in {name!r}; columns that are packed in the same way must have "
                "equal lengths",
                field="alike",
            )
    return lists[0][own], np.diff(edges)[own]


def _costs(column: pa.Array[Any], name: str, first: int) -> NDArray[np.int64]:
    # What exceeds 63 bits becomes negative.
    costs = np.asarray(column.cast(pa.int64(), safe=False).fill_null(-1))
    bad = np.flatnonzero((costs < 0) | (costs >= COST_LIMIT))
    if bad.size:
        row = int(bad[0])
        raise BadArgumentError(
            f"sample {first + row} has {column[row].as_py()} in {name!r}; a cost must be a whole "
            f"number in [0, {COST_LIMIT})",
            field="cost",
        )
    return costs


def _token_counts(
    column: pa.Array[Any], tokenizer: Tokenizer, name: str, first: int
) -> NDArray[np.int64]:
    texts = [text or b"" for text in column.cast(pa.large_binary()).to_pylist()]
    try:
        return tokenizer.lengths(texts)
    except TextRefusedError as error:
        raise BadArgumentError(
            f"sample {first + error.row} cannot be tokenized: {error.reason}; it is in column "
            f"{name!r}",
            field="column",
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    return pat.is_string(kind) or pat.is_large_string(kind)
