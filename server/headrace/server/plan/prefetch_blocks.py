"""Request the blocks of a stream's batches ahead of need, and return the batches in turn."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.readers import Blocks, Waiter
from headrace.server.plan.planned_batches import Planned, PlannedBatch
from headrace.server.plan.steps_ahead import Ahead
from headrace.v1 import shard_service_pb2 as pb

# A plan takes about 30 bytes per sample; these limit what a stream keeps (arbitrary).
_MAX_PLANS = 64
_MAX_SAMPLES = 1 << 17

# Plans made for each one taken in normal operation: enough to get ahead, few enough that no batch
# waits for them.
_STEADY_PLANS = 2

# While a first batch waits, no more is requested once it and the batches after it have asked for
# more than this, so that it has the store for itself. About 50 ms of a fast store, so that little
# time is lost if it needs less.
_ALONE_BYTES = 32 << 20

FORESEEN_SAMPLES = _MAX_SAMPLES
"""Samples that a job looks ahead, so that the cache knows which blocks are no longer needed: in a
cache of 2 GiB, a block that is needed has about sixty samples among them, or all that are left of
it. This takes no extra time, because these batches are planned in any case."""
FORESEEN_WINDOWS = 1.5
"""Or this many times the samples that are shuffled together, if that is less: a block is read last
one such window after it is first read, and prefetches come half a window earlier."""
# The most batches to look ahead, because each takes additional memory.
_MAX_FORESEEN = 1 << 10
# Batches foreseen for each one taken until the look-ahead is complete, so that it is complete
# before a half-full cache becomes full.
_FORESEEN_PLANS = 3

_Entry: TypeAlias = tuple[PlannedBatch | None, pb.EpochEnd | None, int]
"""A batch, or the end of an epoch, and the bytes requested for it."""

# Bytes for plans and tables that each stream has without a claim.
_FREE_BYTES = 4 << 20
_PLAN_BYTES = 32
# Planning a batch takes several arrays over its samples.
_PLANNING_BYTES = 200


def plan_bytes(sample_count: int) -> int:
    """Return the bytes to claim for plans of batches of this size, beyond what each stream has.

    It is 0 except for batches with very many samples.
    """
    planned = min(_MAX_PLANS * sample_count, max(_MAX_SAMPLES, 2 * sample_count))
    return max(0, _PLAN_BYTES * planned + _PLANNING_BYTES * sample_count - _FREE_BYTES)


@dataclass(frozen=True, slots=True, eq=False)
class ReadAhead:
    """How a stream reads ahead of need.

    Attributes:
        blocks_of_runs: Returns the blocks that an epoch reads with those of given samples; None if
            blocks are read separately.
        foreseen_samples: How many samples to look ahead, prefetched ones included, when blocks may
            have to be evicted, so that the cache knows which blocks are still needed.
        steps: Makes what prefetches beyond plans, from the spare bytes of the cache; None for
            nothing.
        most_ahead: Returns how many samples may be planned ahead now.
    """

    blocks_of_runs: Callable[[int, NDArray[np.int64]], NDArray[np.int64]] | None = None
    foreseen_samples: int = 0
    steps: Callable[[Callable[[], int]], Ahead] | None = None
    most_ahead: Callable[[], int] = lambda: _MAX_SAMPLES


BY_PLANS = ReadAhead()
"""Prefetches the blocks of plans, and no others."""


class Lookahead:
    """The plans of one stream, and the requests for their blocks; not thread-safe.

    Args:
        plans: The plans of the stream.
        blocks: Fetches the blocks.
        waiter: The stream's handle in the cache.
        budget_bytes: Returns how many bytes of blocks may currently be prefetched.
        read_ahead: How it reads ahead.
        spare_bytes: Returns the spare bytes of the cache.
    """

    def __init__(
        self,
        plans: Iterator[Planned],
        *,
        blocks: Blocks,
        waiter: Waiter,
        budget_bytes: Callable[[], int],
        read_ahead: ReadAhead = BY_PLANS,
        spare_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self._plans = plans
        self._make_steps = read_ahead.steps if budget_bytes() else None
        self._spare_bytes = spare_bytes
        self._steps: Ahead | None = None
        self._most_foreseen = read_ahead.foreseen_samples
        self._most_ahead = read_ahead.most_ahead
        self._foreseen: deque[Planned] = deque()
        self._foreseen_samples = self._foreseen_batches = self._foreseeable = 0
        self._blocks = blocks
        self._waiter = waiter
        self._budget_bytes = budget_bytes
        self._blocks_of_runs = read_ahead.blocks_of_runs
        self._unasked: deque[PlannedBatch] = deque()
        self._entries: deque[_Entry] = deque()
        self._samples = 0
        self._taken = 0
        self._first_bytes = 0

    def take(self, most: int = 1) -> Planned | None:
        """Return the next plan, or None at the end of the stream.

        Args:
            most: The most batches to return; fewer if the following ones differ in kind.
        """
        self._first_bytes = 0
        self.advance(_STEADY_PLANS * most if self._taken else 1)
        if not self._entries:
            return None
        planned, end, asked_bytes = self._entries.popleft()
        if not self._taken:
            self._first_bytes = asked_bytes
        if planned is None:
            self._took(1, 0, asked_bytes)
            return [], end
        followers = self._followers(planned, most - 1) if most > 1 else []
        for _ in followers:
            asked_bytes += self._entries.popleft()[2]
        count = 1 + len(followers)
        self._took(count, planned.sample_count * count, asked_bytes)
        if self._waiter.filling.is_filling:
            self._foresee(count)
        if self._make_steps is not None and self._taken > 1:
            self._advance_steps(self._make_steps, followers[-1] if followers else planned)
        return [planned, *followers], None

    def close(self) -> None:
        """Drop all plans, whose windows would be kept as long as this object."""
        for held in (self._entries, self._foreseen, self._unasked):
            held.clear()
        if isinstance(self._plans, Generator):
            self._plans.close()
        self._plans, self._steps, self._make_steps = iter(()), None, None

    def _advance_steps(
        self, make: Callable[[Callable[[], int]], Ahead], last: PlannedBatch
    ) -> None:
        if self._steps is None:
            self._steps = make(self._spare_bytes)
        self._steps.advance(
            self._blocks, self._waiter, epoch=last.epoch, position=last.part.next_position
        )

    def advance(self, count: int = _MAX_PLANS) -> None:
        """Plan up to ``count`` further batches, as far as the budget allows, but at least one.

        Plans none while a first batch waits for many bytes.
        """
        budget_bytes, ahead = self._budget_bytes(), self._waiter.ahead
        most_samples = min(_MAX_SAMPLES, self._most_ahead())
        while count > 0 and not (self._first_bytes and self._is_first_alone()):
            is_full = (
                self._waiter.asked_bytes >= budget_bytes
                or ahead.asked_bytes >= budget_bytes * ahead.streams
                or self._samples >= most_samples
                or len(self._entries) >= _MAX_PLANS
            )
            if self._entries and is_full:
                return
            added = self._add_some()
            if not added:
                return
            count -= added

    def _is_first_alone(self) -> bool:
        """Return whether a first batch that waits, and what was requested after it, are enough."""
        return self._first_bytes + self._waiter.asked_bytes > _ALONE_BYTES

    def _followers(self, planned: PlannedBatch, most: int) -> list[PlannedBatch]:
        """Return following batches to make with a first one, if all their blocks are available.

        Otherwise they wait separately, and until then their blocks must count as needed.
        """
        followers: list[PlannedBatch] = []
        for follower, _, _ in itertools.islice(self._entries, most):
            if follower is None or not planned.is_alike(follower):
                break
            followers.append(follower)
        if followers:
            found = planned.found.up_to(followers[-1].found)
            if not self._blocks.is_cached(found.touched).all():
                return []
        return followers

    def _took(self, count: int, samples: int, asked_bytes: int) -> None:
        self._taken += count
        self._waiter.begin_batch(count)
        self._samples -= samples
        if asked_bytes:
            self._waiter.ask_bytes(-asked_bytes)

    def _foresee(self, count: int) -> None:
        """Look further ahead, by more batches than were taken, unless a first one waits."""
        if self._first_bytes and self._is_first_alone():
            return
        self._foreseeable += _FORESEEN_PLANS * count
        most_foreseen = min(self._most_foreseen, self._most_ahead())
        while (
            self._foreseeable > 0
            and self._samples + self._foreseen_samples < most_foreseen
            and self._foreseen_batches < _MAX_FORESEEN
            and (planned := next(self._plans, None)) is not None
        ):
            batches, _ = planned
            self._announce(batches)
            self._foreseen_samples += sum([batch.sample_count for batch in batches])
            if not batches:
                self._waiter.foresee_batch()
            self._foreseen_batches += len(batches)
            self._foreseen.append(planned)
            self._foreseeable -= max(1, len(batches))
        # Batches that could not be foreseen are not made up for later.
        self._foreseeable = min(self._foreseeable, 0)

    def _announce(self, batches: Sequence[PlannedBatch]) -> None:
        for batch in batches:
            self._waiter.foresee_batch()
            self._blocks.foresee(batch.found.touched, self._waiter)

    def _next_foreseen(self) -> Planned:
        batches, _ = planned = self._foreseen.popleft()
        self._foreseen_samples -= sum([batch.sample_count for batch in batches])
        self._foreseen_batches -= len(batches)
        return planned

    def _add_some(self) -> int:
        """Request the blocks of the next batch, or of several whose blocks are all available."""
        if not self._unasked:
            is_foreseen = bool(self._foreseen)
            planned = self._next_foreseen() if is_foreseen else next(self._plans, None)
            if planned is None:
                return 0
            batches, end = planned
            if end is not None:
                self._waiter.plan_batch()
                self._entries.append((None, end, 0))
                return 1
            if len(batches) > 1 and self._are_there(batches):
                return len(batches)
            self._unasked.extend(batches)
            if not is_foreseen:
                # Before later ones: `Waiter.plan_batch` takes what was foreseen first.
                self._announce(batches)
        planned_batch = self._unasked.popleft()
        self._waiter.plan_batch()
        asked_bytes = 0
        asked = self._blocks.prefetch(self._with_runs(planned_batch), self._waiter)
        if asked.size:
            asked_bytes = int(self._blocks.stored_bytes(asked).sum())
        self._entries.append((planned_batch, None, asked_bytes))
        self._samples += planned_batch.sample_count
        if asked_bytes:
            self._waiter.ask_bytes(asked_bytes)
        return 1

    def _with_runs(self, planned: PlannedBatch) -> NDArray[np.int64]:
        """Return the blocks of a batch, and those that are read together with missing ones.

        One read brings them, and later batches need them. But a client waits for a first batch.
        Blocks that are being fetched were requested with their runs before.
        """
        found = planned.found
        if self._blocks_of_runs is None or not self._taken:
            return found.touched
        absent = ~self._blocks.is_known(found.touched)
        if not absent.any():
            return found.touched
        lacking = np.isin(found.blocks, found.touched[absent])
        runs = self._blocks_of_runs(planned.epoch, found.sample_ids[lacking])
        return np.union1d(found.touched, runs)

    def _are_there(self, batches: list[PlannedBatch]) -> bool:
        """Add batches if they need no fetches; their blocks count as the last one's."""
        if batches[0].found.together is not batches[-1].found.together:
            return False
        found = batches[0].found.up_to(batches[-1].found)
        if not self._blocks.is_cached(found.touched).all():
            return False
        self._waiter.plan_batch(len(batches))
        # A block that is evicted meanwhile is fetched again.
        self._blocks.prefetch(found.touched, self._waiter)
        self._entries.extend([(batch, None, 0) for batch in batches])
        self._samples += sum([batch.sample_count for batch in batches])
        return True
