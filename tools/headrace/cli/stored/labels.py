"""Read the labels of a dataset's samples in storage order, from some of its blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import click
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.storage import OpenDataset


@dataclass(frozen=True, slots=True, eq=False)
class StoredLabels:
    """Labels by sample id.

    Attributes:
        labels: ``(samples,) int64``, counted from 0 as they come first.
        values: The values that are labels, by these numbers.
        read: The number of blocks that were read. The samples of other blocks get the last label
            before them.
        blocks: The total number of blocks.
    """

    labels: NDArray[np.int64]
    values: pa.Array[Any]
    read: int
    blocks: int


def _bar(blocks: list[int]) -> AbstractContextManager[Iterable[int]]:
    return click.progressbar(blocks, label="reading labels", file=sys.stderr)


def read_labels(
    dataset: OpenDataset,
    column: str,
    *,
    max_bytes: int,
    progress: Callable[[list[int]], AbstractContextManager[Iterable[int]]] = _bar,
) -> StoredLabels:
    """Read the labels of a dataset.

    Args:
        dataset: The dataset.
        column: The column of labels.
        max_bytes: The maximum number of stored bytes to read, in evenly spaced blocks; at least one
            block is read.
        progress: Shows the progress over the blocks.

    Raises:
        UsageError: There is no such column.
        BadArgumentError: Its values cannot be counted, such as lists.
    """
    if column not in dataset.schema.names:
        raise click.UsageError(
            f"--label: there is no column {column!r}; there are {', '.join(dataset.schema.names)}."
        )
    kind = dataset.schema.field(column).type
    if pa.types.is_nested(kind) or isinstance(kind, pa.ExtensionType):
        raise BadArgumentError(
            f"column {column!r} has the type {kind}, which cannot be a label; choose a column of "
            "numbers, texts or classes",
            field="label",
        )
    every = np.arange(dataset.block_count)
    mean = max(int(dataset.stored_bytes) // max(dataset.block_count, 1), 1)
    step = max(-(-dataset.block_count * mean // max(max_bytes, 1)), 1)
    blocks: NDArray[np.int64] = every[::step]
    firsts = dataset.block_first_samples(blocks)
    values: list[pa.Array[Any]] = []
    lengths: list[int] = []
    numbers: list[int] = blocks.tolist()
    with progress(numbers) as shown:
        for block in shown:
            found: pa.Array[Any] = dataset.read_block(block).column(column)
            values.append(found)
            lengths.append(len(found))
    encoded = pc.dictionary_encode(pa.concat_arrays(values), null_encoding="encode")
    codes = cast("pa.DictionaryArray[Any, Any]", encoded)
    own = np.asarray(codes.indices).astype(np.int64)
    # The last label of a block extends to the next block that was read.
    ends = np.append(firsts[1:], dataset.sample_count)
    counts = np.ones(len(own), np.int64)
    lasts = np.cumsum(lengths) - 1
    counts[lasts] += ends - firsts - np.array(lengths)
    labels = np.repeat(own, counts)
    return StoredLabels(labels, codes.dictionary, len(blocks), dataset.block_count)
