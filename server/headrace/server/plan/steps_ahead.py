"""Prefetch the blocks of a step of the order at an even pace, while the step before is served.

A step needs nearly all its blocks in its first part, because its samples are shuffled. Looking
ahead batch by batch would request them all at the border of two steps, and the loop would wait
there, although the mean rate is sufficient.

Contract, for each lane that a stream reads:

1. A place runs ahead of the stream, by as many samples as fit into the memory of the cache that its
   jobs do not need for shuffling (`spare_samples`). If that is less than a step, nothing is
   prefetched, because it would evict blocks that are still needed.
2. While this place passes through a step, the missing blocks of the next step are prefetched in
   even parts, the last of them after three quarters of the step, so that they have time to arrive.
3. The last step of an epoch is followed by the first of the next one, if the stream reads it.
   A step that needs more blocks than it has samples for, as the first one does, is prefetched that
   much earlier: while the long last step is served, which needs few. Of what is prefetched for it,
   no more is in memory than there is room for, and than the last step has freed.
4. Blocks of one run, and adjacent runs, are requested together, so that one read brings them.
5. The cache keeps prefetched blocks until their step is over, in preference to unannounced ones.
6. If the order cannot be read by steps, or one step is a whole epoch, nothing is prefetched here.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.readers import Blocks, Waiter

# The most parts in which the blocks of a step are requested (arbitrary: few enough calls).
_PARTS = 16
# The part of a step after which all blocks of the next one have been requested.
_DONE_AT = 0.75
# The last step of an epoch has half of the samples of its blocks, and each of them has about five
# there. So when a share of the step has been served, that share to the fifth power of its blocks is
# free (computed for the defaults; blocks of more samples are free later).
_HELD, _FREED = 2, 5
# The most steps that one batch passes through; more only if a step is a few samples.
_MOST_STEPS = 64


_Part: TypeAlias = "tuple[int, int]"
"""A lane and the place after a step: the cache's key for the blocks that the step needs."""


class StepBlocks(Protocol):
    """A step of the order, and its blocks."""

    @property
    def start(self) -> int:
        """Its first place in the lane."""

    @property
    def end(self) -> int:
        """The place after its last."""

    @property
    def blocks(self) -> NDArray[np.int64]:
        """Its distinct blocks, ascending."""


class Steps(Protocol):
    """The parts of an order that are needed here."""

    @property
    def block_samples(self) -> float:
        """The mean number of samples of a block."""

    def lane_place(self, lane: int, position: int) -> int:
        """Return how many positions before ``position`` a lane fills."""

    def lane_length(self, lane: int) -> int:
        """Return how many samples of an epoch a lane holds."""

    def step_blocks(self, epoch: int, lane: int, place: int) -> StepBlocks | None:
        """Return the step that holds a place of a lane; None if steps are not available now."""

    def whole_runs(self, epoch: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks that an epoch reads with those given, ascending."""


class Ahead(Protocol):
    """What prefetches blocks of batches that are not planned yet."""

    def advance(self, blocks: Blocks, waiter: Waiter, *, epoch: int, position: int) -> None:
        """Prefetch the blocks that are due when a stream has reached a position."""


class StepsAhead:
    """Prefetches the blocks of coming steps; not thread-safe.

    Args:
        steps: The steps of the order.
        lanes: The lanes that the stream reads.
        last_epoch: The last epoch that it reads; None for no end.
        spare_samples: Returns how many samples of a lane currently fit into the cache besides those
            that are shuffled together.
    """

    def __init__(
        self,
        steps: Steps,
        lanes: Sequence[int],
        *,
        last_epoch: int | None,
        spare_samples: Callable[[], int],
    ) -> None:
        self._steps = steps
        self._spare_samples = spare_samples
        self._lanes = [
            _LaneAhead(steps, lane, last_epoch=last_epoch)
            for lane in lanes
            if steps.lane_length(lane)
        ]

    def advance(self, blocks: Blocks, waiter: Waiter, *, epoch: int, position: int) -> None:
        """Prefetch the blocks that are due when a stream has reached a position."""
        spare = self._spare_samples()
        for lane in self._lanes:
            place = self._steps.lane_place(lane.lane, position)
            for wanted, part in lane.due(epoch, place, spare, blocks):
                blocks.ask_ahead(wanted, waiter, part=part)
            for part in lane.passed():
                waiter.forget(part)


class _LaneAhead:
    """The state of one lane; places continue from epoch to epoch."""

    def __init__(self, steps: Steps, lane: int, *, last_epoch: int | None) -> None:
        self.lane = lane
        self._steps = steps
        self._length = steps.lane_length(lane)
        self._end = None if last_epoch is None else (last_epoch + 1) * self._length
        self._own_end = 0
        self._own_start = 0
        # The samples of this step, or of the one before if those are fewer.
        self._room = 0
        # The step that is being requested, its remaining blocks, and the place to request more at.
        self._next_start = self._next_end = -1
        self._parts: list[NDArray[np.int64]] = []
        self._part_count = 0
        self._samples = 1.0  # of these blocks
        # Steps with requested blocks that are not over yet.
        self._ahead: deque[_Part] = deque()

    def due(
        self, epoch: int, place: int, spare: int, blocks: Blocks
    ) -> Iterator[tuple[NDArray[np.int64], _Part]]:
        """Yield blocks to request before the next samples are taken, and their step."""
        at = epoch * self._length + place
        if not self._own_start <= at < self._own_end and not self._enter(at):
            return
        if spare < self._room or self._own_end - self._own_start == self._length:
            # In the second case the step's blocks are those of the whole epoch, and of the next.
            return
        target = at + spare
        for _ in range(_MOST_STEPS):
            for wanted in self._parts_until(at, spare):
                part = (self.lane, self._next_end)
                if part not in self._ahead:
                    self._ahead.append(part)
                yield wanted, part
            if self._parts or target < self._next_start or not self._go_on(blocks):
                return

    def passed(self) -> Iterator[_Part]:
        """Yield the steps that are over, once each."""
        while self._ahead and self._ahead[0][1] <= self._own_start:
            yield self._ahead.popleft()

    def _enter(self, at: int) -> bool:
        """Find the step that holds a place."""
        found = self._step(at)
        if found is None:
            return False
        base, count = at - at % self._length, found.end - found.start
        is_next = 0 < self._own_end == base + found.start
        self._room = min(count, self._own_end - self._own_start) if is_next else count
        self._own_start, self._own_end = base + found.start, base + found.end
        if self._next_end < self._own_start:
            # At the start of a stream, and after a jump, its own step is the first to request.
            self._next_start = self._next_end = self._own_start
            self._parts = []
        return True

    def _go_on(self, blocks: Blocks) -> bool:
        """Start to request the next step."""
        if self._end is not None and self._next_end >= self._end:
            return False
        found = self._step(self._next_end)
        if found is None:
            return False
        base = self._next_end - self._next_end % self._length
        self._next_start, self._next_end = base + found.start, base + found.end
        is_known = blocks.is_known(found.blocks)
        unknown = found.blocks[~is_known]
        if unknown.size:
            # A run may continue in the step after this one, and one read brings all of it.
            unknown = self._steps.whole_runs(self._next_start // self._length, unknown)
            unknown = unknown[~blocks.is_known(unknown)]
        self._parts = even_parts(unknown)
        if not found.start and is_known.any():
            # The epoch before may be done with them sooner.
            self._parts.insert(0, found.blocks[is_known])
        self._part_count = len(self._parts)
        self._samples = max(1.0, unknown.size * self._steps.block_samples)
        return True

    def _parts_until(self, at: int, spare: int) -> list[NDArray[np.int64]]:
        if not self._parts:
            return []
        count = max(1, self._next_end - self._next_start)
        own_count = self._own_end - self._own_start
        surplus = max(0.0, self._samples - count)
        pace = min(self._samples, count) if surplus < count else self._samples
        done = at + spare - (self._next_start - surplus)
        share = done / (max(1.0, pace) * _DONE_AT)
        if surplus >= count and at < self._next_start:
            freed = _HELD * own_count * ((at - self._own_start) / own_count) ** _FREED
            share = min(share, (spare + freed) / self._samples)
        asked = min(self._part_count, max(0, int(share * self._part_count)))
        left = self._part_count - asked
        due = self._parts[: len(self._parts) - left]
        del self._parts[: len(due)]
        return due

    def _step(self, at: int) -> StepBlocks | None:
        return self._steps.step_blocks(at // self._length, self.lane, at % self._length)


def even_parts(blocks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut ascending blocks into even parts, but none of those that lie side by side."""
    if not blocks.size:
        return []
    cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
    if not cuts.size:
        return [blocks]
    wanted = np.arange(1, _PARTS) * blocks.size // _PARTS
    at = np.minimum(np.searchsorted(cuts, wanted), cuts.size - 1)
    return np.split(blocks, np.unique(cuts[at]))
