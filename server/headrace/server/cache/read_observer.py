"""Report reads from a dataset's store to metrics, health and traces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow as pa

from headrace.errors import HeadraceError, InternalError
from headrace.server.cache.fetch.block_runs import (
    BlockReader,
    block_schema,
    read_run,
    read_verified,
    run_blocks,
)
from headrace.storage import ReadBlock, VerifiedBlocks, Verify

_T = TypeVar("_T")
_Read = TypeVar("_Read")


class ReadObserver(Protocol):
    """Receives reports of reads, in the thread that read."""

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Report a read: its blocks, and the reason of its failure, empty for none."""


class WatchedBlocks:
    """The blocks of a dataset, with a report of each read to observers.

    Args:
        name: The name of the dataset.
        blocks: The reader of the blocks.
        observers: Receive the reports, in this order.
    """

    def __init__(self, name: str, blocks: BlockReader, observers: Sequence[ReadObserver]) -> None:
        self._name = name
        self._blocks = blocks
        self._observers = tuple(observers)

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one block, as `OpenDataset.read_block` does."""
        (read,) = self.read_run([block])
        if isinstance(read.content, HeadraceError):
            raise read.content
        return read.content

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read together; see the dataset's method."""
        return run_blocks(self._blocks, max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Fetch, verify and decode blocks, neighbours together; errors are values."""
        return self._watched(read_run(self._blocks, blocks))

    @property
    def block_schema(self) -> pa.Schema | None:
        """The schema of stored blocks; None if they must be decoded."""
        return block_schema(self._blocks)

    def read_verified(
        self, blocks: Sequence[int], verify: Verify[_T]
    ) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
        """Read blocks as `read_run` does, but decode only those that ``verify`` does not take."""
        return self._watched(read_verified(self._blocks, blocks, verify))

    def _watched(self, reads: Iterator[_Read]) -> Iterator[_Read]:
        """Report the reads of a run when it ends.

        A run counts as one read with the first of its errors. The time that the caller spends on
        blocks in between does not count.
        """
        seconds, count, reason, is_over = 0.0, 0, "", False
        began = time.monotonic()
        try:
            for read in reads:
                seconds += time.monotonic() - began
                count += len(read.contents) if isinstance(read, VerifiedBlocks) else 1
                if isinstance(read, ReadBlock) and isinstance(read.content, HeadraceError):
                    reason = reason or read.content.reason
                yield read
                began = time.monotonic()
            is_over = True
        except HeadraceError as error:
            reason = error.reason
            raise
        finally:
            reason = reason if reason or is_over else InternalError.reason
            for observer in self._observers:
                observer.read(self._name, seconds=seconds, blocks=count, reason=reason)


# Reasons that concern the store as a whole; a damaged block concerns only its streams.
_OF_THE_STORE = frozenset({"OBJECT_NOT_FOUND", "STORE_REFUSED", "STORE_UNAVAILABLE"})

# A single failure may concern only one block (arbitrary).
_FAILURES = 3


class StoreHealth:
    """Reports whether the store of each dataset answers.

    A dataset is unhealthy after three failed reads in a row, and healthy again after the next
    success. Streams continue to read, so that a recovered store is detected.

    Args:
        report: Called with each change: the dataset's name, and whether it is healthy.
    """

    def __init__(self, report: Callable[[str, bool], None]) -> None:
        self._report = report
        self._failures: dict[str, int] = {}
        # Also held while a change is reported, so that changes are reported in order.
        self._changing = threading.Lock()

    def forget(self, dataset: str) -> None:
        """Forget the failures of a dataset that is removed, or opened again under its name."""
        with self._changing:
            self._failures.pop(dataset, None)

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Record a read."""
        del seconds, blocks
        if not reason and dataset not in self._failures:
            return
        with self._changing:
            if not reason:
                if self._failures.pop(dataset, 0) >= _FAILURES:
                    self._report(dataset, True)
            elif reason in _OF_THE_STORE:
                self._failures[dataset] = self._failures.get(dataset, 0) + 1
                if self._failures[dataset] == _FAILURES:
                    self._report(dataset, False)
