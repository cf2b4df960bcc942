"""Read every block of a dataset and list what is wrong with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from headrace.errors import ObjectNotFoundError, ShardCorruptError
from headrace.storage.source.source import OpenDataset, ShardCheck

DEFAULT_VERIFY_THREADS = 16
"""Where reads of 1 MiB from one S3 host level off; more only hold more memory."""


_SHARDS_AT_ONCE = 1024  # arbitrary; bounds how many answers wait for the caller


@dataclass(frozen=True, slots=True)
class Fault:
    """A block that does not match its manifest.

    Attributes:
        shard: Name of the shard, as the error gave it.
        block: Ordinal in the dataset.
        offset: First byte of the block in the shard, or None where the source knows none.
        first_sample: First sample id that is affected.
        end_sample: One past the last sample id that is affected.
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

    Memory is bounded by two blocks a thread.

    Args:
        dataset: Any open dataset.
        threads: Blocks to read at once, >= 1.
        progress: Called with the number of blocks done, after each.

    Raises:
        StoreRefusedError: The store refuses.
        StoreUnavailableError: The store cannot be reached: nothing is known of the rest.
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
    """Check what blocks do not show, and yield the findings for every shard, in order.

    That is the end of each shard, its header and footer, and how many of its samples no checksum
    protects. Missing and changed blocks are left to `verify_blocks`.

    Args:
        dataset: Any open dataset.
        threads: How many shards to check at once, >= 1.

    Raises:
        StoreRefusedError: The store refuses.
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
    # The wait ends with the store's own deadlines.
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
