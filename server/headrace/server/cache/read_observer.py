"""Report how reads from a dataset's store went, to metrics, health and traces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from headrace.errors import HeadraceError, InternalError
from headrace.server.cache.fetch.block_runs import BlockReader, read_run, run_blocks
from headrace.storage import ReadBlock


class ReadObserver(Protocol):
    """Is told of each read, by the thread that read."""

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Note a read: how many blocks it brought; the reason of its failure, or nothing."""


class WatchedBlocks:
    """The blocks of a dataset; observers are told of each read.

    Args:
        name: The name of the dataset.
        blocks: Are read.
        observers: Are told, in this order.
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
        """Return how many neighbouring blocks one read should bring, as the dataset has it."""
        return run_blocks(self._blocks, max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Fetch, verify and decode blocks, neighbours together; errors are values.

        A run counts as one read, with the first of its errors; what is done with a block between
        two of them is not its time.
        """
        seconds, count, reason, is_over = 0.0, 0, "", False
        began = time.monotonic()
        try:
            for read in read_run(self._blocks, blocks):
                seconds += time.monotonic() - began
                count += 1
                if isinstance(read.content, HeadraceError):
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


# Reasons that concern the store as a whole. A damaged block concerns its streams alone.
_OF_THE_STORE = frozenset({"OBJECT_NOT_FOUND", "STORE_REFUSED", "STORE_UNAVAILABLE"})

# One failure may be an accident of one block (arbitrary).
_FAILURES = 3


class StoreHealth:
    """Reports for each dataset whether its store answers.

    A dataset is unhealthy after three failures in a row of reading it, and healthy again after the
    next success. The streams continue to ask, so that a store that comes back is seen.

    Args:
        tell: Is told of each change: the dataset's name, and whether it is healthy.
    """

    def __init__(self, tell: Callable[[str, bool], None]) -> None:
        self._tell = tell
        self._failures: dict[str, int] = {}
        # Held while news is told as well, so that it is told in the order in which it came.
        self._changing = threading.Lock()

    def read(self, dataset: str, *, seconds: float, blocks: int, reason: str) -> None:
        """Note a read."""
        del seconds, blocks
        if not reason and dataset not in self._failures:
            return
        with self._changing:
            if not reason:
                if self._failures.pop(dataset, 0) >= _FAILURES:
                    self._tell(dataset, True)
            elif reason in _OF_THE_STORE:
                self._failures[dataset] = self._failures.get(dataset, 0) + 1
                if self._failures[dataset] == _FAILURES:
                    self._tell(dataset, False)
