"""Read every block of a dataset and list what is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.errors import ObjectNotFoundError, ShardCorruptError
from headrace.storage.source.source import OpenDataset, ShardCheck

DEFAULT_VERIFY_THREADS = 16
"""More reads of 1 MiB at a time gain nothing from one S3 host, and hold more memory."""


_SHARDS_AT_ONCE = 1024  # arbitrary; bounds how many results wait for the caller


@dataclass(frozen=True, slots=True)
class Fault:
    """A block that does not match its manifest.

    Attributes:
        shard: Name of the shard, from the error.
        block: Ordinal of the block in the dataset.
        offset: First byte of the block in the shard, or None if the source does not know it.
        first_sample: First affected sample id.
        end_sample: The id after the last affected one.
        reason: ``SHARD_CORRUPT`` or ``OBJECT_NOT_FOUND``.
        message: What was found, and what was expected.
    """

    shard: str
    block: int
    offset: int | None
    first_sample: int
    end_sample: int
    reason: str
    message: str


def verify_blocks(
    dataset: OpenDataset,
    *,
    threads: int = DEFAULT_VERIFY_THREADS,
    progress: Callable[[int], None] | None = None,
) -> Iterator[Fault]:
    """Read and verify every block, in order, and yield a fault for each that fails.

    Memory is bounded by two blocks for each thread.

    Args:
        dataset: Any open dataset.
        threads: How many blocks to read at the same time, >= 1.
        progress: Called after each block with the number of blocks so far.

    Raises:
        StoreRefusedError: The store refused the request.
        StoreUnavailableError: The store cannot be reached, so the other blocks are not verified.
    """
    with ThreadPoolExecutor(threads, thread_name_prefix="headrace-verify") as pool:
        waiting: deque[Future[Fault | None]] = deque()
        for block in range(dataset.block_count):
            waiting.append(pool.submit(_fault_of, dataset, block))
            if len(waiting) >= 2 * threads:
                yield from _next(waiting, block + 2 - 2 * threads, progress)
        while waiting:
            yield from _next(waiting, dataset.block_count - len(waiting) + 1, progress)


def verify_shards(
    dataset: OpenDataset, *, threads: int = DEFAULT_VERIFY_THREADS
) -> Iterator[ShardCheck]:
    """Check what is outside the blocks, and yield the findings for each shard, in order.

    That is the size of each shard, its header and footer, and the number of samples that no
    checksum protects. `verify_blocks` finds missing and changed blocks.

    Args:
        dataset: Any open dataset.
        threads: How many shards to check at the same time, >= 1.

    Raises:
        StoreRefusedError: The store refused the request.
        StoreUnavailableError: The store cannot be reached.
    """

    def check(shard: int) -> ShardCheck:
        try:
            return dataset.check_shard(shard)
        except (ShardCorruptError, ObjectNotFoundError) as error:
            return ShardCheck(error.metadata.get("shard") or error.metadata.get("name", ""))

    with ThreadPoolExecutor(threads, thread_name_prefix="headrace-verify") as pool:
        for start in range(0, dataset.shard_count, _SHARDS_AT_ONCE):
            stop = min(start + _SHARDS_AT_ONCE, dataset.shard_count)
            yield from pool.map(check, range(start, stop))


def _next(
    waiting: deque[Future[Fault | None]], done: int, progress: Callable[[int], None] | None
) -> Iterator[Fault]:
    # The deadlines of the store bound this wait.
    fault = waiting.popleft().result()
    if progress is not None:
        progress(done)
    if fault is not None:
        yield fault


def _fault_of(dataset: OpenDataset, block: int) -> Fault | None:
    try:
        dataset.read_block(block)
    except (ShardCorruptError, ObjectNotFoundError) as error:
        first, end = dataset.block_sample_range(block)
        offset = error.metadata.get("offset")
        return Fault(
            shard=error.metadata.get("shard") or error.metadata.get("name", ""),
            block=block,
            offset=None if offset is None else int(offset),
            first_sample=first,
            end_sample=end,
            reason=error.reason,
            message=error.message,
        )
    return None
