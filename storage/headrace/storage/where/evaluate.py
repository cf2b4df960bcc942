"""Find which samples of a dataset a filter keeps, reading each block once, a few at a time."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.dataset.dataset import Dataset
from headrace.storage.source.source import OpenDataset
from headrace.storage.where.binding import Filter

_Mask: TypeAlias = NDArray[np.bool_]

# The stored bytes of blocks that are read together, and the number of simultaneous reads: enough
# for a store that answers after 20 ms, with some tens of MiB of memory.
_RUN_BYTES = 4 << 20
_RUNS = 4
# The bytes of the columns that are compared at once: one term of an expression takes some ten
# microseconds of Python, however few samples it compares (arbitrary).
_GROUP_BYTES = 1 << 20


@runtime_checkable
class ColumnReader(Protocol):
    """A dataset that can read a part of a block's columns."""

    def read_columns(self, block: int, names: tuple[str, ...]) -> pa.RecordBatch:
        """Read some columns of one block, as `OpenDataset.read_block` reads all columns."""


def kept_bits(
    dataset: OpenDataset, filtered: Filter, *, progress: Callable[[int], None] = lambda _: None
) -> NDArray[np.uint8]:
    """Return a bit per sample, 1 if it is kept, with the lowest bit of each byte first.

    Args:
        dataset: The dataset, which the caller keeps.
        filtered: The filter, made for the dataset's schema.
        progress: Called after each read with the number of samples checked. What it raises is
            raised, when the reads in progress have ended.

    Returns:
        ``(ceil(sample_count / 8),) uint8``.

    Raises:
        HeadraceError: A block cannot be read.
    """
    with closing(find_kept_bits(dataset, filtered)) as finding:
        while True:
            try:
                done = next(finding)
            except StopIteration as over:
                bits: NDArray[np.uint8] = over.value
                return bits
            progress(done)


def find_kept_bits(
    dataset: OpenDataset, filtered: Filter
) -> Generator[int, None, NDArray[np.uint8]]:
    """Find which samples a filter keeps; yield the number of samples checked after each read.

    Contract:

    1. Each block is read once, with `_RUNS` simultaneous reads, which also limit the blocks in
       memory.
    2. Failure: the error of the first block that cannot be read is raised. Reads in progress end
       first, and no others start. The same holds if the generator is closed.

    If the code differs, the code is wrong.

    Args:
        dataset: The dataset, which the caller keeps.
        filtered: The filter, made for the dataset's schema.

    Returns:
        What `kept_bits` returns.

    Raises:
        HeadraceError: A block cannot be read.
    """
    bits = np.zeros(-(-dataset.sample_count // 8), np.uint8)
    together = _blocks_together(dataset)
    starts = iter(range(0, dataset.block_count, together))
    pool = ThreadPoolExecutor(_RUNS, thread_name_prefix="headrace-filter")

    def submit(start: int) -> Future[list[tuple[int, _Mask]]]:
        end = min(start + together, dataset.block_count)
        return pool.submit(lambda: list(_masks(dataset, filtered, range(start, end))))

    try:
        running = deque(submit(start) for start in itertools.islice(starts, _RUNS))
        while running:
            found = running.popleft().result()
            running.extend(submit(start) for start in itertools.islice(starts, 1))
            for first, mask in found:
                _set(bits, first, mask)
            first, mask = found[-1]
            yield first + mask.size
    finally:
        pool.shutdown(cancel_futures=True)
    return bits


def _blocks_together(dataset: OpenDataset) -> int:
    mean = dataset.stored_bytes // max(1, dataset.block_count)
    return max(1, min(_RUN_BYTES // max(1, mean), 64))


def _masks(dataset: OpenDataset, filtered: Filter, blocks: range) -> Iterator[tuple[int, _Mask]]:
    """Yield for each group of blocks its first sample, and which of its samples are kept."""
    for first_block, batches in _groups(_read(dataset, filtered, blocks)):
        first, _ = dataset.block_sample_range(first_block)
        # One batch, unless its texts are longer than Arrow can count.
        for batch in pa.Table.from_batches(batches).combine_chunks().to_batches():
            yield first, filtered.mask(batch)
            first += batch.num_rows


def _groups(
    read: Iterator[tuple[int, pa.RecordBatch]],
) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield the first block of each group, and its blocks."""
    first, group, size = 0, list[pa.RecordBatch](), 0
    for block, batch in read:
        if not group:
            first = block
        group.append(batch)
        size += batch.nbytes
        if size >= _GROUP_BYTES:
            yield first, group
            group, size = [], 0
    if group:
        yield first, group


def _read(
    dataset: OpenDataset, filtered: Filter, blocks: range
) -> Iterator[tuple[int, pa.RecordBatch]]:
    if isinstance(dataset, ColumnReader):
        for block in blocks:
            yield block, dataset.read_columns(block, filtered.columns)
    elif isinstance(dataset, Dataset):
        for read in dataset.read_run(blocks):
            if not isinstance(read.content, pa.RecordBatch):
                raise read.content
            yield read.block, read.content.select(filtered.columns)
    else:
        for block in blocks:
            yield block, dataset.read_block(block).select(filtered.columns)


def _set(bits: NDArray[np.uint8], first: int, mask: _Mask) -> None:
    lead = first % 8
    padded = np.concatenate([np.zeros(lead, np.bool_), mask])
    packed = np.packbits(padded, bitorder="little")
    bits[first // 8 : first // 8 + packed.size] |= packed
