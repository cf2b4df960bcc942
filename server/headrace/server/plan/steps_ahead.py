"""Ask for the blocks of a step of the order while the one before it is served, at an even pace.

Nearly all blocks that a step brings in are wanted in its first part, as its samples are shuffled.
Whoever looks ahead by batches asks for them all at once, at the border of two steps, and then a
loop waits that would not have to at the same mean rate.

Contract, for each lane that a stream reads:

1. The stream is followed at a distance ahead of it: as many samples as that memory of the cache
   holds which its jobs do not shuffle in (`spare_samples`). Where that is less than a step nothing
   is asked for: it would push out what is still needed.
2. While that place goes through a step, the blocks that the step needs and that are not in memory
   are asked for in even parts, all of them when three quarters of it have been passed: the rest of
   the time is theirs to come.
3. After the last step of an epoch comes the first of the next one, if the stream goes on so far.
4. Blocks of one run, and runs that lie side by side, are asked for at once, so that one read
   brings them.
5. The cache keeps what was asked for until its step is over, before what nobody has announced.
6. Nothing is asked for that way where the order cannot be read by steps.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.source import Blocks, Waiter

# In as many parts the blocks of a step are asked for, at most (arbitrary: calls must not count).
_PARTS = 16
# After this part of a step all blocks of the next one have been asked for.
_DONE_AT = 0.75
# Steps that one batch may go through, at most; it is more only where a step is a few samples.
_MOST_STEPS = 64


_Part: TypeAlias = "tuple[int, int]"
"""A lane, and the place after a step, by which the cache is told what that step needs."""


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
    """What is needed to know of an order."""

    def lane_place(self, lane: int, position: int) -> int:
        """Return how many of the positions before one a lane fills."""

    def lane_length(self, lane: int) -> int:
        """Return how many samples of an epoch a lane has."""

    def step_blocks(self, epoch: int, lane: int, place: int) -> StepBlocks | None:
        """Return the step that holds a place of a lane; None where steps cannot be had now."""

    def whole_runs(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all blocks of the runs that blocks begin in, ascending."""


class StepsAhead:
    """Asks for what the steps to come need. Not safe for several threads.

    Args:
        steps: The steps of the order.
        lanes: Those that the stream reads.
        last_epoch: The last one that it reads; None for no end.
        spare_samples: Gives how many samples of a lane the cache has room for beside those that are
            shuffled together, as it is now.
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
        """Ask for what is due when a stream has come to a position."""
        spare = self._spare_samples()
        for lane in self._lanes:
            place = self._steps.lane_place(lane.lane, position)
            for wanted, part in lane.due(epoch, place, spare, blocks):
                blocks.ask_ahead(wanted, waiter, part=part)
            for part in lane.passed():
                waiter.forget(part)


class _LaneAhead:
    """How far one lane has been asked for; places go on from epoch to epoch."""

    def __init__(self, steps: Steps, lane: int, *, last_epoch: int | None) -> None:
        self.lane = lane
        self._steps = steps
        self._length = steps.lane_length(lane)
        self._end = None if last_epoch is None else (last_epoch + 1) * self._length
        self._own_end = 0
        self._own_start = 0
        # The step that is being asked for, what of it has not been, and the place to ask more at.
        self._next_start = self._next_end = -1
        self._parts: list[NDArray[np.int64]] = []
        self._part_count = 0
        # Steps that something was asked for and that are not over.
        self._ahead: deque[_Part] = deque()

    def due(
        self, epoch: int, place: int, spare: int, blocks: Blocks
    ) -> Iterator[tuple[NDArray[np.int64], _Part]]:
        """Yield blocks to ask for before the next are taken, and the step that they are for."""
        at = epoch * self._length + place
        if not self._own_start <= at < self._own_end and not self._enter(at):
            return
        if spare < self._own_end - self._own_start:
            return
        target = at + spare
        for _ in range(_MOST_STEPS):
            for wanted in self._parts_until(target):
                part = (self.lane, self._next_end)
                if part not in self._ahead:
                    self._ahead.append(part)
                yield wanted, part
            if self._parts or target < self._next_end or not self._go_on(blocks):
                return

    def passed(self) -> Iterator[_Part]:
        """Yield the steps that are over, once each."""
        while self._ahead and self._ahead[0][1] <= self._own_start:
            yield self._ahead.popleft()

    def _enter(self, at: int) -> bool:
        """Find the step that a place is in."""
        found = self._step(at)
        if found is None:
            return False
        base = at - at % self._length
        self._own_start, self._own_end = base + found.start, base + found.end
        if self._next_end < self._own_start:
            # At the start of a stream, and where it jumped: its own step is the first to ask for.
            self._next_start = self._next_end = self._own_start
            self._parts = []
        return True

    def _go_on(self, blocks: Blocks) -> bool:
        """Begin to ask for the next step."""
        if self._end is not None and self._next_end >= self._end:
            return False
        found = self._step(self._next_end)
        if found is None:
            return False
        base = self._next_end - self._next_end % self._length
        self._next_start, self._next_end = base + found.start, base + found.end
        unknown = found.blocks[~blocks.is_known(found.blocks)]
        if unknown.size:
            # A run may go on into the step after this one, and one read brings all of it.
            unknown = self._steps.whole_runs(unknown)
            unknown = unknown[~blocks.is_known(unknown)]
        self._parts = _parts(unknown)
        self._part_count = len(self._parts)
        return True

    def _parts_until(self, target: int) -> list[NDArray[np.int64]]:
        if not self._parts:
            return []
        count = max(1, self._next_end - self._next_start)
        share = (target - self._next_start) / (count * _DONE_AT)
        left = self._part_count - min(self._part_count, int(share * self._part_count))
        due = self._parts[: len(self._parts) - left]
        del self._parts[: len(due)]
        return due

    def _step(self, at: int) -> StepBlocks | None:
        return self._steps.step_blocks(at // self._length, self.lane, at % self._length)


def _parts(blocks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Cut ascending blocks into even parts, but none of those that lie side by side."""
    if not blocks.size:
        return []
    cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
    if not cuts.size:
        return [blocks]
    wanted = np.arange(1, _PARTS) * blocks.size // _PARTS
    at = np.minimum(np.searchsorted(cuts, wanted), cuts.size - 1)
    return np.split(blocks, np.unique(cuts[at]))
