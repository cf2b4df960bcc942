"""Dealing: how the samples of a lane get from its layout into steps.

The layout of a lane is cut into cohorts, and each cohort is dealt to as many steps as it has
slices: each slice gets one sample of every group of neighbours. So the samples of a run are spread
over several steps, although the run is in memory only once. Then each step is permuted.

Every step takes one slice of as many cohorts, the first step too: the cohorts before cohort 0 count
as begun in steps that never were, so they have fewer slices, and negative numbers. Before them
there may be a ramp, cohorts of one slice that double in size.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.order.basics.hash import draw_each
from headrace.order.basics.segments import starts_of

_Array: TypeAlias = NDArray[np.int64]
_Keys: TypeAlias = NDArray[np.uint64]
Owners: TypeAlias = NDArray[np.int64] | int
"""The lane of each number: (n,) int64, or one lane for all."""

# Most slices of a cohort; a prime, so that a line of any slope deals a group to all slices.
_MOST: Final = 17
_HALF_BITS: Final = 32
_LOW_HALF: Final = np.uint64((1 << _HALF_BITS) - 1)


def _lines_of_all() -> tuple[_Array, _Array]:
    slopes, inverses = np.zeros((2, _MOST + 1, _MOST + 1), np.int64)
    for slices in range(1, _MOST + 1):
        own = [slope for slope in range(1, slices + 1) if gcd(slope, slices) == 1]
        slopes[slices, 0] = inverses[slices, 0] = len(own)
        slopes[slices, 1 : len(own) + 1] = own
        inverses[slices, 1 : len(own) + 1] = [pow(slope, -1, slices) for slope in own]
    return slopes, inverses


_LINES = _lines_of_all()
_SLOPES = _LINES[0]
LINE_INVERSES = _LINES[1]
"""How many slopes there are for a number of slices, ``[slices, 0]``, and the inverse of each modulo
that number, ``[slices, 1 + i]``; `_SLOPES` has the slopes themselves."""

# The row of each number of a triangle whose rows have 1, 2, 3, ... numbers.
_ROWS: Final = np.repeat(np.arange(_MOST), np.arange(1, _MOST + 1))


@dataclass(frozen=True, slots=True)
class FullCohorts:
    """The cohorts of a lane that are of full size.

    Attributes:
        first: The step that takes the first slice of the first one.
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
        first_samples: (lanes,) int64, the fewest samples of the first step of a ramp; 0 for no
            ramp.

    Attributes:
        lengths: (lanes,) int64, samples of each lane.
        last_steps: (lanes,) int64, the number of the last step.
        step_samples: (lanes,) int64, samples of a step, other than those of the ramp and the last.
        opening: (lanes,) int64, where the cohorts before cohort 0 start in the lane's layout.
        opening_samples: (lanes,) int64, samples of these cohorts.
    """

    def __init__(self, lengths: _Array, memories: _Array, first_samples: _Array) -> None:
        self.lengths = lengths
        self._make_ramps(np.minimum(lengths, memories) // 2, first_samples)
        # The greatest number of slices whose square, with two more for each, memory has room for.
        slices = (
            np.floor(np.sqrt(np.minimum(memories, _MOST * _MOST << 1) + 1)).astype(np.int64) - 1
        )
        self._slices: _Array = np.clip(slices, 1, _MOST)
        # Memory holds one cohort for each slice, one that is being fetched, and half of one to
        # spare.
        self._groups: _Array = np.maximum(2 * memories // (2 * self._slices + 3) // self._slices, 1)
        self.step_samples: _Array = self._slices * self._groups
        rest = lengths - self.opening
        self.opening_samples = self._groups * (self._slices * (self._slices - 1) // 2)
        self.opening_samples[rest <= memories] = 0
        self._counts: _Array = (rest - self.opening_samples) // self.step_samples
        self._counts[rest <= memories] = 0
        self.last_steps: _Array = self._ramps + self._counts
        self._first_full = self.opening + self.opening_samples
        self._tails = self._first_full + self._counts * self.step_samples

    def step_start(self, owners: Owners, steps: _Array) -> _Array:
        """Return the place at which each step starts."""
        later = steps - self._ramps[owners]
        ramp = np.maximum(np.minimum(later, 0) + self._ramps[owners] - 1, 0)
        early = np.where(steps > 0, self._bases[owners] << ramp, 0)
        result: _Array = np.where(
            later >= 0, self.opening[owners] + later * self.step_samples[owners], early
        )
        return result

    def steps_of(self, owners: Owners, places: _Array) -> _Array:
        """Return the step of each place of its lane."""
        later = places - self.opening[owners]
        steps: _Array = self._ramps[owners] + later // self.step_samples[owners]
        (first,) = np.nonzero(later < 0)
        if len(first):
            steps[first] = self._doublings(_some(owners, first), places[first])
        result: _Array = np.minimum(steps, self.last_steps[owners])
        return result

    def step_length(self, owners: Owners, steps: _Array) -> _Array:
        """Return how many samples each step has."""
        last = steps >= self.last_steps[owners]
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
        later = steps - self._ramps[owners]
        groups: _Array = self._groups[owners]
        nth, group = slots // groups, slots % groups
        # The last step takes one slice of the oldest cohort, two of the next, and so on.
        last = steps == self.last_steps[owners]
        row = np.where(last, _ROWS[np.minimum(nth, len(_ROWS) - 1)], nth)
        cohort: _Array = later - (self._slices[owners] - 1) + row
        part = later - np.maximum(cohort, 0) + np.where(last, nth - row * (row + 1) // 2, 0)
        # What is not dealt: the ramp, and the rest after the last cohort.
        plain = (later < 0) | (last & (slots >= self._carried(owners)))
        cohort[plain], part[plain] = 0, 0
        slices, start = self._cohort(owners, cohort)
        first: _Array = start + group * slices
        slope, turn = _lines(keys, second_keys, first, slices)
        member = (part - turn) * LINE_INVERSES[slices, slope] % slices
        rest = np.where(
            later < 0,
            self.step_start(owners, steps),
            self._tails[owners] - self._carried(owners),
        )
        return np.where(plain, rest + slots, first + member)

    def slots(
        self, keys: _Keys, second_keys: _Keys, owners: Owners, offsets: _Array
    ) -> tuple[_Array, _Array]:
        """Return the step and the slot of each sample of the layout: the inverse of `offsets`."""
        groups, counts = self._groups[owners], self._counts[owners]
        past = offsets - self._first_full[owners]
        cohort: _Array = past // self.step_samples[owners]
        rows = np.clip((offsets - self.opening[owners]) // groups, 0, len(_ROWS) - 1)
        cohort = np.where(past < 0, _ROWS[rows] + 1 - self._slices[owners], cohort)
        ramp, tail = offsets < self.opening[owners], offsets >= self._tails[owners]
        cohort[ramp | tail] = 0
        slices, start = self._cohort(owners, cohort)
        group, member = (offsets - start) // slices, (offsets - start) % slices
        first: _Array = start + group * slices
        slope, turn = _lines(keys, second_keys, first, slices)
        part = (_SLOPES[slices, slope] * member + turn) % slices
        later = np.minimum(np.maximum(cohort, 0) + part, counts)
        nth = cohort - later + self._slices[owners] - 1
        # In the last step come all slices that are left of the cohorts before.
        left = nth * (nth + 1) // 2 + part - (counts - np.maximum(cohort, 0))
        slots = np.where(later == counts, left, nth) * groups + group
        steps = np.where(tail, counts, later) + self._ramps[owners]
        slots = np.where(tail, offsets - self._tails[owners] + self._carried(owners), slots)
        (early,) = np.nonzero(ramp)
        if len(early):
            own = _some(owners, early)
            steps[early] = self._doublings(own, offsets[early])
            slots[early] = offsets[early] - self.step_start(own, steps[early])
        return steps, slots

    def step_at(self, owner: int, place: int) -> tuple[int, int, int]:
        """Return the step that holds a place of a lane, its first place, and its sample count."""
        opening, size = int(self.opening[owner]), int(self.step_samples[owner])
        if place < opening:
            base = int(self._bases[owner])
            step = (place // base).bit_length()
            return step, base << step >> 1 if step else 0, base << max(step - 1, 0)
        later, count = (place - opening) // size, int(self._counts[owner])
        if later >= count:
            start = opening + count * size
            return int(self.last_steps[owner]), start, int(self.lengths[owner]) - start
        return later + int(self._ramps[owner]), opening + later * size, size

    def is_dealt(self, owner: int, step: int) -> bool:
        """Return whether a step has samples of cohorts.

        If not, its samples follow one another in the layout, and their offsets are their slots
        after the step's first place.
        """
        return bool(step >= self._ramps[owner] and self._counts[owner])

    def full_steps(self, owner: int) -> tuple[int, int]:
        """Return the first step of a lane with full cohorts only, and the step after the last."""
        first = int(self._ramps[owner]) + int(self._slices[owner]) - 1
        return first, max(first, int(self.last_steps[owner]))

    def full_cohorts(self, owner: int) -> FullCohorts:
        """Return the cohorts of those steps."""
        return FullCohorts(
            first=int(self._ramps[owner]),
            offset=int(self._first_full[owner]),
            count=int(self._counts[owner]),
            slices=int(self._slices[owner]),
            groups=int(self._groups[owner]),
        )

    def entries(self, owner: int, step: int) -> _Array:
        """Return the slices that a step of a lane takes, as in `Step.entries`."""
        later, most = step - int(self._ramps[owner]), int(self._slices[owner])
        is_last = step == self.last_steps[owner]
        steps = np.array([step])
        found = []
        if later < 0:
            start, count = self.step_start(owner, steps), self.step_length(owner, steps)
            found.append((int(count[0]), int(start[0]), 1, 0))
        elif not is_last or self._counts[owner]:
            cohorts = np.arange(later - most + 1, later + (not is_last))
            slices, firsts = (table.tolist() for table in self._cohort(owner, cohorts))
            groups = int(self._groups[owner])
            for nth, cohort in enumerate(cohorts.tolist()):
                part = later - max(cohort, 0)
                parts = range(part, part + (nth + 1 if is_last else 1))
                found += [(groups, firsts[nth], slices[nth], each) for each in parts]
        if is_last:
            tail = int(self._tails[owner])
            found.append((int(self.lengths[owner]) - tail, tail, 1, 0))
        table = np.zeros((len(found) + 1, 4), np.int64)
        table[:-1] = found
        table[:, 0] = starts_of(table[:-1, 0])
        return table

    def stretch(self, owner: int, step: int, entries: _Array) -> tuple[int, int]:
        """Return the range of offsets in its lane's layout that holds the samples of a step."""
        low = int(entries[:-1, 1].min())
        if step == self.last_steps[owner]:
            return low, int(self.lengths[owner])
        later = step - int(self._ramps[owner])
        if later < 0:
            return low, low + int(entries[-1, 0])
        _, starts = self._cohort(owner, np.array([later + 1]))
        return low, int(starts[0])

    def _cohort(self, owners: Owners, cohorts: _Array) -> tuple[_Array, _Array]:
        # Return the slices of each cohort and the offset of its first sample.
        slices: _Array = self._slices[owners] + np.minimum(cohorts, 0)
        before = self._groups[owners] * (slices * (slices - 1) // 2)
        full = self._first_full[owners] + cohorts * self.step_samples[owners]
        return slices, np.where(cohorts < 0, self.opening[owners] + before, full)

    def _carried(self, owners: Owners) -> _Array:
        # Return how many samples of the last step are left of cohorts.
        dealt = self._counts[owners] > 0
        most: _Array = self._slices[owners]
        return np.where(dealt, self._groups[owners] * (most * (most - 1) // 2), 0)

    def _make_ramps(self, most: _Array, first_samples: _Array) -> None:
        # Each step of the ramp has as many samples as all before it, but the first two are equal.
        doublings = most // np.maximum(first_samples, 1)
        doublings[first_samples == 0] = 0
        doublings = np.maximum(_bits(doublings) - 1, 0)
        self._bases: _Array = most >> doublings
        self._ramps: _Array = np.where(doublings > 0, doublings + 1, 0)
        self.opening: _Array = np.where(doublings > 0, self._bases << doublings, 0)

    def _doublings(self, owners: Owners, places: _Array) -> _Array:
        # Return the step of each place of a ramp.
        return _bits(places // self._bases[owners])


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
    count = int(LINE_INVERSES[slices, 0])
    parts, slopes, turns = np.ogrid[:slices, 1 : count + 1, :slices]
    lines = (parts - turns) * LINE_INVERSES[slices][slopes] % slices
    members: _Array = lines.reshape(slices, -1).take(slope, axis=1)
    return members


def _some(owners: Owners, chosen: _Array) -> Owners:
    return owners if isinstance(owners, int) else owners[chosen]


def _bits(numbers: _Array) -> _Array:
    # Return how many binary digits each number below 2**53 has.
    _, exponents = np.frexp(numbers.astype(np.float64))
    return exponents.astype(np.int64)


def _lines(keys: _Keys, second_keys: _Keys, first: _Array, slices: _Array) -> tuple[_Array, _Array]:
    # The group that starts at each offset is dealt by a line: member a goes to slice slope * a +
    # turn. The slope is given by its place in `_SLOPES`.
    drawn = draw_each(keys, first.view(np.uint64), second_keys)
    words, slopes = slices.view(np.uint64), LINE_INVERSES[slices, 0].view(np.uint64)
    slope = ((drawn >> np.uint64(_HALF_BITS)) * slopes) >> np.uint64(_HALF_BITS)
    turn = ((drawn & _LOW_HALF) * words) >> np.uint64(_HALF_BITS)
    return slope.view(np.int64) + 1, turn.view(np.int64)
