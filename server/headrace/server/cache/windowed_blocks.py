"""The blocks of a dataset or a mixture for a stream, of which some may be pieces of a window."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RebalanceError
from headrace.server.cache.demands_in_turn import DemandsInTurn
from headrace.server.cache.gather import Rows
from headrace.server.cache.readers import Lease, Waiter, WholeBlocks
from headrace.server.cache.source import ABSENT, Source
from headrace.server.cache.windows import Windows
from headrace.server.layout.block_layout import BlockLayout


class WindowedBlocks:
    """Blocks and pieces of blocks, by the numbers that `Windows` describes.

    As long as a stream reads whole blocks, this costs it a comparison.

    Args:
        whole: The blocks.
        windows: Their windows.
    """

    def __init__(self, whole: WholeBlocks, windows: Windows) -> None:
        self._whole = whole
        self._windows = windows
        self._cache = whole.cache
        self._turns = DemandsInTurn(whole.cache)

    @property
    def layout(self) -> BlockLayout:
        return self._whole.layout

    def waiter(self, job: Hashable = None) -> Waiter:
        return self._whole.waiter(job)

    def leave(self, waiter: Waiter) -> None:
        self._whole.leave(waiter)

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._whole.stored_bytes(blocks % self._windows.stride)

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._are_whole(blocks):
            return self._whole.is_cached(blocks)
        cached: NDArray[np.bool_] = self._windows.slots(blocks) > ABSENT
        return cached

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        if self._are_whole(blocks):
            return self._whole.is_known(blocks)
        return self._windows.is_known(blocks)

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        if self._are_whole(blocks):
            return self._whole.lease(blocks)
        return Lease(self._cache.readers, self._windows, blocks)

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        if self._are_whole(blocks):
            return self._whole.prefetch(blocks, waiter)
        if self._cache.readers.will_read(self._windows, blocks, waiter):
            return blocks[:0]
        return self._ask(blocks, waiter)

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self._windows, blocks)
        self._ask(blocks, waiter)

    def expect(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self._windows, blocks)

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        if self._are_whole(blocks):
            self._whole.foresee(blocks, waiter)
        else:
            waiter.foresee(self._windows, blocks)

    @contextmanager
    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> Iterator[None]:
        with self._turns.demanded(
            [(_known(source), first, own) for source, first, _, own in self._windows.split(blocks)],
            waiter,
        ):
            yield

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        return self._turns.arrivals(waiter, timeout_s=timeout_s)

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        return self._whole.fit_together(blocks % self._windows.stride)

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        if self._are_whole(blocks):
            return self._whole.rows(blocks, offsets)
        parts = [
            (_known(source), places, own) for source, _, places, own in self._windows.split(blocks)
        ]
        return self._whole.rows_of(parts, offsets)

    def _are_whole(self, blocks: NDArray[np.int64]) -> bool:
        return not blocks.size or int(blocks.max()) < self._windows.stride

    def _ask(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        asked = [blocks[:0]]
        for source, first, _, own in self._windows.split(blocks):
            if source is not None:
                asked.append(self._cache.prefetch(source, own, waiter) + first)
        return np.concatenate(asked)


def _known(source: Source | None) -> Source:
    """Return what numbers belong to; streams hold the windows of what they have planned."""
    if source is None:
        raise RebalanceError("this stream was planned with less memory; reconnect to continue")
    return source
