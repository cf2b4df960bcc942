"""Dealing: how the samples of a lane get from its layout into steps.

The layout of a lane is cut into cohorts, and each cohort is dealt to as many steps as it has
slices: each slice gets one sample of every group of neighbours. So the samples of a run are spread
over several steps, although the run is in memory only once. Then each step is permuted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import draw_each
from headrace.order.basics.segments import starts_of

_Array: TypeAlias = NDArray[np.int64]
_Keys: TypeAlias = NDArray[np.uint64]
Owners: TypeAlias = NDArray[np.int64] | int
"""The lane of each number: (n,) int64, or one lane for all."""

# Slices of a cohort: primes, so that a line deals a group to all slices.
_SLICES: Final = (1, 2, 3, 5, 7, 11, 13, 17)
_MOST: Final = _SLICES[-1]
# The first cohorts have one slice and this part of a cohort, so that a first batch is small.
_FIRST_PARTS: Final = (16, 16, 8, 4, 2)
_RAMP: Final = len(_FIRST_PARTS) + len(_SLICES) - 2
# The first steps, which take from other cohorts than d of full size.
_EARLY: Final = _RAMP + _MOST - 1
_HALF_BITS: Final = 32
_LOW_HALF: Final = np.uint64((1 << _HALF_BITS) - 1)


def _inverses() -> _Array:
    table = np.zeros((_MOST + 1, _MOST + 1), np.int64)
    for slices in _SLICES[1:]:
        for slope in range(1, slices):
            table[slices, slope] = pow(slope, -1, slices)
    return table


LINE_INVERSES: Final = _inverses()
"""The inverse of each slope modulo each number of slices: ``[slices, slope]``."""


@dataclass(frozen=True, slots=True)
class FullCohorts:
    """The cohorts of a lane after its ramp, all of full size.

    Attributes:
        first: Number of the first cohort.
        offset: Offset of its first sample in the lane's layout.
        count: How many cohorts are dealt.
        slices: The slices of each cohort.
        groups: The groups of each slice.
    """

    first: int
    offset: int
    count: int
    slices: int
    groups: int


class Dealings:
    """The steps of one or more lanes.

    All samples before a lane's last step are dealt; the rest is one step, which fits into memory.
    `Owners` say which lane each number belongs to.

    Args:
        lengths: (lanes,) int64, samples of each lane.
        memories: (lanes,) int64, samples that are shuffled together, >= 1.

    Attributes:
        lengths: (lanes,) int64, samples of each lane.
        cohorts: (lanes,) int64, how many cohorts are dealt, which is also the number of the last
            step.
        step_samples: (lanes,) int64, samples of a step, other than the first steps and the last.
    """

    def __init__(self, lengths: _Array, memories: _Array) -> None:
        self.lengths = lengths
        least = np.array([slices * (slices + 2) for slices in _SLICES])
        chosen = np.searchsorted(least, memories, side="right") - 1
        self._last_slices = np.array(_SLICES)[np.maximum(chosen, 0)]
        # Memory holds one cohort for each slice, one that is being fetched, and half of one to
        # spare.
        groups = 2 * memories // (2 * self._last_slices + 3) // self._last_slices
        self._last_groups = np.maximum(groups, 1)
        self.step_samples = self._last_groups * self._last_slices
        self._make_kinds()
        self._make_steps()
        self.cohorts = self._count_cohorts(memories)
        self._tail_starts = self._cohort_starts(np.arange(len(lengths)), self.cohorts)

    def step_start(self, owners: Owners, steps: _Array) -> _Array:
        """Return the place at which each step starts."""
        later = np.maximum(steps - self._early[owners], 0)
        result: _Array = self._step_starts[owners, steps - later]
        result += later * self.step_samples[owners]
        return result

    def steps_of(self, owners: Owners, places: _Array) -> _Array:
        """Return the step of each place of its lane."""
        early = self._early[owners]
        past = places - self._early_ends[owners]
        steps: _Array = early + past // self.step_samples[owners]
        (first,) = np.nonzero(past < 0)
        if len(first):
            starts = self._step_starts[_some(owners, first)].reshape(-1, _EARLY + 1)
            steps[first] = (starts <= places[first][:, None]).sum(axis=1) - 1
        return np.minimum(steps, self.cohorts[owners])

    def step_length(self, owners: Owners, steps: _Array) -> _Array:
        """Return how many samples each step has."""
        last = steps >= self.cohorts[owners]
        ends = np.where(last, self.lengths[owners], self.step_start(owners, steps + 1))
        result: _Array = ends - self.step_start(owners, steps)
        return result

    def offsets(
        self, keys: _Keys, second_keys: _Keys, owners: Owners, steps: _Array, slots: _Array
    ) -> _Array:
        """Return the offset in its lane's layout of the sample in each slot of each step.

        Args:
            keys: (n,) or (1,) uint64, the key of each lane's dealing in the epoch.
            second_keys: What `second_keys_of` returns for the keys.
            owners: The lane of each step.
            steps: (n,) int64, as `steps_of` returns them.
            slots: (n,) int64, each in [0, length of its step).
        """
        last_slices = self._last_slices[owners]
        nth, group = np.divmod(slots, self._last_groups[owners])
        cohort = steps - (last_slices - 1) + nth
        part = (last_slices - 1) - nth
        (odd,) = np.nonzero((steps < self._early[owners]) | (steps == self.cohorts[owners]))
        if len(odd):
            own = _some(owners, odd)
            cohort[odd], part[odd], group[odd] = self._odd_slots(own, steps[odd], slots[odd])
        kind = np.minimum(cohort, self._ramps[owners])
        slices = self._slices[owners, kind]
        first = self._cohort_starts(owners, cohort) + group * slices
        tail = cohort == self.cohorts[owners]
        slope, turn = _lines(keys, second_keys, first, slices)
        member = (part - turn) * LINE_INVERSES[slices, slope] % slices
        return np.where(tail, self._tail_starts[owners] + group, first + member)

    def slots(
        self, keys: _Keys, second_keys: _Keys, owners: Owners, offsets: _Array
    ) -> tuple[_Array, _Array]:
        """Return the step and the slot of each sample of the layout: the inverse of `offsets`."""
        cohort = self._cohorts_of(owners, offsets)
        kind = np.minimum(cohort, self._ramps[owners])
        slices = self._slices[owners, kind]
        start = self._cohort_starts(owners, cohort)
        group, member = np.divmod(offsets - start, slices)
        slope, turn = _lines(keys, second_keys, start + group * slices, slices)
        part = (slope * member + turn) % slices
        cohorts = self.cohorts[owners]
        steps = np.minimum(np.where(cohort >= cohorts, cohorts, cohort + part), cohorts)
        slots = (cohort - steps + self._last_slices[owners] - 1) * self._last_groups[owners] + group
        (odd,) = np.nonzero((steps < self._early[owners]) | (steps == cohorts))
        if len(odd):
            own = _some(owners, odd)
            rest = np.where(
                cohort[odd] >= self.cohorts[own], offsets[odd] - self._tail_starts[own], group[odd]
            )
            before = self._before(own, steps[odd], cohort[odd], part[odd])
            slots[odd] = before + rest
        return steps, slots

    def step_at(self, owner: int, place: int) -> tuple[int, int, int]:
        """Return the step that holds a place of a lane, its first place, and its sample count."""
        first, stop = self.full_steps(owner)
        size = int(self.step_samples[owner])
        start = int(self._early_ends[owner])
        step = first + (place - start) // size
        if first <= step < stop:
            return step, start + (step - first) * size, size
        step = int(self.steps_of(owner, np.array([place]))[0])
        steps = np.array([step])
        return step, int(self.step_start(owner, steps)[0]), int(self.step_length(owner, steps)[0])

    def full_steps(self, owner: int) -> tuple[int, int]:
        """Return the first step of a lane with full cohorts only, and the step after the last."""
        first = int(self._early[owner])
        return first, max(first, int(self.cohorts[owner]))

    def full_cohorts(self, owner: int) -> FullCohorts:
        """Return the cohorts of those steps."""
        first = int(self._ramps[owner])
        return FullCohorts(
            first=first,
            offset=int(self._ramp_ends[owner]),
            count=int(self.cohorts[owner]) - first,
            slices=int(self._last_slices[owner]),
            groups=int(self._last_groups[owner]),
        )

    def entries(self, owner: int, step: int) -> _Array:
        """Return the slices that a step of a lane takes, as in `Step.entries`."""
        cohorts, ramp = int(self.cohorts[owner]), int(self._ramps[owner])
        slices, groups = self._slices[owner].tolist(), self._groups[owner].tolist()
        numbers = range(max(step - _MOST, 0), min(step + 1, cohorts))
        firsts = self._cohort_starts(owner, np.array(numbers, np.int64)).tolist()
        found = []
        for cohort, first in zip(numbers, firsts, strict=True):
            kind = min(cohort, ramp)
            parts = range(step - cohort, slices[kind])
            found += [
                (groups[kind], first, slices[kind], part)
                for part in (parts if step == cohorts else parts[:1])
            ]
        if step == cohorts:
            tail = int(self._tail_starts[owner])
            found.append((int(self.lengths[owner]) - tail, tail, 1, 0))
        table = np.zeros((len(found) + 1, 4), np.int64)
        table[:-1] = found
        table[:, 0] = starts_of(table[:-1, 0])
        return table

    def stretch(self, owner: int, step: int, entries: _Array) -> tuple[int, int]:
        """Return the range of offsets in its lane's layout that holds the samples of a step."""
        low = int(entries[:-1, 1].min())
        if step == self.cohorts[owner]:
            return low, int(self.lengths[owner])
        return low, int(self._cohort_starts(owner, np.array([step + 1]))[0])

    def _odd_slots(
        self, owners: Owners, steps: _Array, slots: _Array
    ) -> tuple[_Array, _Array, _Array]:
        # Return the cohort, the slice and the group of slots in early and last steps.
        cohorts = self.cohorts[owners]
        cohort, part = np.broadcast_to(cohorts, steps.shape).copy(), np.zeros_like(steps)
        group, rest = slots.copy(), slots.copy()
        found = np.zeros(len(steps), np.bool_)
        for back in range(_MOST if self.cohorts.any() else -1, -1, -1):
            own, first, groups, count = self._entry(owners, steps, back)
            inside = ~found & (rest < count)
            cohort[inside], group[inside] = own[inside], rest[inside] % groups[inside]
            part[inside] = first[inside] + rest[inside] // groups[inside]
            found |= inside
            rest -= np.where(found, 0, count)
            group = np.where(found, group, rest)
        return cohort, part, group

    def _before(self, owners: Owners, steps: _Array, cohort: _Array, part: _Array) -> _Array:
        # Return how many slots of an early or last step come before the first of a slice.
        before = np.zeros_like(steps)
        for back in range(_MOST if self.cohorts.any() else -1, -1, -1):
            own, first, groups, count = self._entry(owners, steps, back)
            before += np.where(own < cohort, count, 0)
            before += np.where(own == cohort, np.minimum((part - first) * groups, count), 0)
        return before

    def _entry(
        self, owners: Owners, steps: _Array, back: int
    ) -> tuple[_Array, _Array, _Array, _Array]:
        # Return what a step takes of the cohort that is `back` before it: the cohort, the first
        # slice, the groups and the samples.
        cohort = steps - back
        last = steps == self.cohorts[owners]
        kind = np.minimum(np.maximum(cohort, 0), self._ramps[owners])
        slices, groups = self._slices[owners, kind], self._groups[owners, kind]
        parts = np.where(last, np.maximum(slices - back, 0), np.where(back < slices, 1, 0))
        there = (cohort >= 0) & (cohort < self.cohorts[owners])
        return cohort, np.full_like(steps, back), groups, np.where(there, parts * groups, 0)

    def _make_kinds(self) -> None:
        # The cohorts of the ramp, followed by one that stands for all others.
        full, last = self.step_samples[:, None], self._last_slices[:, None]
        primes = np.array([1] * len(_FIRST_PARTS) + list(_SLICES[1:-1]))
        divisors = np.array(_FIRST_PARTS + _SLICES[1:-1])
        groups = np.where((primes < last) | (primes == 1), full // divisors, 0)
        order = np.argsort(groups == 0, axis=1, kind="stable")
        self._ramps = (groups > 0).sum(axis=1)
        rows = np.arange(len(full))
        self._slices = np.ones((len(full), _RAMP + 1), np.int64)
        self._slices[:, :-1] = primes[order]
        self._slices[rows, self._ramps] = self._last_slices
        self._groups = np.zeros_like(self._slices)
        self._groups[:, :-1] = np.take_along_axis(groups, order, axis=1)
        self._groups[rows, self._ramps] = self._last_groups
        self._starts = np.zeros_like(self._slices)
        np.cumsum((self._slices * self._groups)[:, :-1], axis=1, out=self._starts[:, 1:])
        self._ramp_ends = self._starts[rows, self._ramps]

    def _make_steps(self) -> None:
        rows = np.arange(len(self._ramps))
        sizes = np.zeros((len(rows), _EARLY + _MOST), np.int64)
        for cohort in range(_EARLY):
            kind = np.minimum(cohort, self._ramps)
            dealt = np.arange(_MOST) < self._slices[rows, kind][:, None]
            sizes[:, cohort : cohort + _MOST] += dealt * self._groups[rows, kind][:, None]
        self._early = self._ramps + self._last_slices - 1
        self._step_starts = np.zeros((len(rows), _EARLY + 1), np.int64)
        np.cumsum(sizes[:, :_EARLY], axis=1, out=self._step_starts[:, 1:])
        self._early_ends = self._step_starts[rows, self._early]

    def _count_cohorts(self, memories: _Array) -> _Array:
        counts = self._cohorts_of(np.arange(len(memories)), self.lengths)
        counts[self.lengths <= memories] = 0
        return counts

    def _cohort_starts(self, owners: Owners, cohorts: _Array) -> _Array:
        later = np.maximum(cohorts - self._ramps[owners], 0)
        result: _Array = self._starts[owners, cohorts - later]
        result += later * self.step_samples[owners]
        return result

    def _cohorts_of(self, owners: Owners, offsets: _Array) -> _Array:
        past = offsets - self._ramp_ends[owners]
        cohorts: _Array = self._ramps[owners] + past // self.step_samples[owners]
        (first,) = np.nonzero(past < 0)
        if len(first):
            starts = self._starts[_some(owners, first)].reshape(-1, _RAMP + 1)
            cohorts[first] = (starts <= offsets[first][:, None]).sum(axis=1) - 1
        return cohorts


def members_of(keys: _Keys, second_keys: _Keys, first: _Array, slices: int) -> _Array:
    """Return which member of each group is dealt to each slice, for cohorts of one size.

    Args:
        keys: (1,) uint64, the key of the lane's dealing in the epoch.
        second_keys: (1,) uint64, what `second_keys_of` returns for the key.
        first: (n,) int64, the offset of each group's first sample.
        slices: The slices of the cohort.

    Returns:
        (slices, n) int64, owned by the caller.
    """
    if slices == 1:
        return np.zeros((1, len(first)), np.int64)
    slope, turn = _lines(keys, second_keys, first, np.array([slices]))
    slope -= 1
    slope *= slices
    slope += turn
    # There are few lines, so each is worked out once.
    parts, slopes, turns = np.ogrid[:slices, 1:slices, :slices]
    lines = (parts - turns) * LINE_INVERSES[slices][slopes] % slices
    members: _Array = lines.reshape(slices, -1).take(slope, axis=1)
    return members


def _some(owners: Owners, chosen: _Array) -> Owners:
    return owners if isinstance(owners, int) else owners[chosen]


def _lines(keys: _Keys, second_keys: _Keys, first: _Array, slices: _Array) -> tuple[_Array, _Array]:
    # The group that starts at each offset is dealt by a line: member a goes to slice slope * a +
    # turn.
    drawn = draw_each(keys, first.view(np.uint64), second_keys)
    words = slices.view(np.uint64)
    slope = ((drawn >> np.uint64(_HALF_BITS)) * (words - np.uint64(1))) >> np.uint64(_HALF_BITS)
    turn = ((drawn & _LOW_HALF) * words) >> np.uint64(_HALF_BITS)
    return slope.view(np.int64) + 1, turn.view(np.int64)
