"""Fetch the pieces of the next window at an even pace, while one is served.

1. The missing pieces of the next window are requested in even parts, the last of them after three
   quarters of the window, so that they have time to arrive. Blocks that are kept whole are
   requested batch by batch. None is requested while another rank is still in the window before,
   since there is room for two windows.
2. What a window and the next one need is announced to the cache, part by part, so that it keeps
   nothing else.
3. The last window of an epoch is followed by the first of the next one, if the stream reads it.
4. While everything fits, blocks are requested by the steps of the order, if it has any.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.readers import Blocks, Waiter
from headrace.server.plan.steps_ahead import StepsAhead, even_parts
from headrace.server.plan.window_finder import Stretch, WindowFinder

# The part of a window after which all pieces of the next one have been requested.
_DONE_AT = 0.75
# Parts of a window in which its needs are announced: a block that is done with stays for one.
_ANNOUNCED = 8


class WindowsAhead:
    """Prefetches the pieces of coming windows for one stream; not thread-safe.

    Args:
        finder: The windows of its job.
        steps: Prefetches by steps while everything fits; None if the order has none.
        last_epoch: The last epoch that it reads; None for no end.
    """

    def __init__(
        self, finder: WindowFinder, steps: StepsAhead | None, *, last_epoch: int | None
    ) -> None:
        self._finder = finder
        self._steps = steps
        self._last_epoch = last_epoch
        self._current: Stretch | None = None
        self._next: Stretch | None = None
        self._parts: list[NDArray[np.int64]] = []
        self._part_count = self._passed = 0

    def advance(self, blocks: Blocks, waiter: Waiter, *, epoch: int, position: int) -> None:
        """Prefetch what is due when a stream has reached a position."""
        if position >= self._finder.sample_count:
            return
        current = self._finder.stretch(epoch, position)
        if current is not self._current:
            self._enter(current, blocks, waiter)
        if current.window is None:
            if self._steps is not None:
                self._steps.advance(blocks, waiter, epoch=epoch, position=position)
            return
        share = (position - current.start) / (current.end - current.start)
        while self._passed < int(share * _ANNOUNCED):
            waiter.forget((current, self._passed))
            self._passed += 1
        if not self._parts or self._finder.has_before(current):
            return
        left = self._part_count - min(
            self._part_count, 1 + int(share / _DONE_AT * self._part_count)
        )
        due = self._parts[: len(self._parts) - left]
        del self._parts[: len(due)]
        for wanted in due:
            blocks.ask_ahead(wanted, waiter, part=self._next)

    def _enter(self, current: Stretch, blocks: Blocks, waiter: Waiter) -> None:
        """Announce a window and the next one, and cut what is missing of that into parts."""
        for over in (self._current, self._next):
            if over is not None:
                waiter.forget(over)
            for part in range(_ANNOUNCED):
                waiter.forget((over, part))
        self._current, self._next = current, None
        self._parts, self._part_count, self._passed = [], 0, 0
        if current.window is None:
            return
        self._announce(current, blocks, waiter)
        following = self._following(current)
        if following is None or following.window is None:
            return
        self._next = following
        self._announce(following, blocks, waiter)
        self._parts = even_parts(following.pieces[~blocks.is_known(following.pieces)])
        self._part_count = len(self._parts)

    def _announce(self, stretch: Stretch, blocks: Blocks, waiter: Waiter) -> None:
        for part in range(_ANNOUNCED):
            blocks.expect(stretch.part(part, _ANNOUNCED), waiter, part=(stretch, part))

    def _following(self, current: Stretch) -> Stretch | None:
        if current.end < self._finder.sample_count:
            return self._finder.stretch(current.epoch, current.end)
        if self._last_epoch is not None and current.epoch >= self._last_epoch:
            return None
        return self._finder.stretch(current.epoch + 1, 0)
