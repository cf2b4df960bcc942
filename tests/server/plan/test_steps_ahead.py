"""Tests of asking by steps: all that a step needs, once, in time, evenly, and side by side."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.server.cache.readers import Blocks, Waiter
from headrace.server.plan.steps_ahead import StepsAhead

_LENGTH, _STEP, _STEP_BLOCKS = 1000, 100, 40


@dataclass
class _Step:
    start: int
    end: int
    blocks: NDArray[np.int64]


class _Steps:
    """One lane of ten steps, each with 40 blocks of its own: 20 pairs of neighbours."""

    block_samples = _STEP / _STEP_BLOCKS

    def lane_place(self, lane: int, position: int) -> int:
        """Return the position: there is one lane."""
        return position * (lane == 0)

    def lane_length(self, lane: int) -> int:
        """Return the length of the one lane."""
        return _LENGTH * (lane == 0)

    def step_blocks(self, epoch: int, lane: int, place: int) -> _Step | None:
        """Return a step; epochs share blocks."""
        del epoch, lane
        number = place // _STEP
        return _Step(number * _STEP, (number + 1) * _STEP, blocks_of(number))

    def whole_runs(self, epoch: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return pairs of an even block and the one after it."""
        del epoch
        firsts = np.unique(blocks // 2 * 2)
        return np.sort(np.concatenate([firsts, firsts + 1]))


@dataclass
class _Asked:
    """Blocks that are there as soon as they are asked for."""

    calls: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        """All that was asked for, in order."""
        return [block for call in self.calls for block in call.tolist()]

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which were asked for."""
        return np.isin(blocks, np.array(self.blocks, np.int64))

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        """Note those that are not there."""
        del waiter, part
        self.calls.append(blocks[~self.is_known(blocks)])


def blocks_of(number: int) -> NDArray[np.int64]:
    """Return the blocks of a step."""
    firsts = number * 1000 + np.arange(0, 2 * _STEP_BLOCKS, 4)
    return np.sort(np.concatenate([firsts, firsts + 1]))


def _advance(ahead: StepsAhead, asked: _Asked, *, epoch: int = 0, position: int) -> list[int]:
    before = len(asked.blocks)
    ahead.advance(cast("Blocks", asked), Waiter(threading.Lock()), epoch=epoch, position=position)
    return asked.blocks[before:]


def _ahead(*, last_epoch: int | None = None, spare: int = _STEP) -> StepsAhead:
    return StepsAhead(_Steps(), range(1), last_epoch=last_epoch, spare_samples=lambda: spare)


def test_the_next_step_is_asked_for_while_this_one_is_served() -> None:
    """Evenly, from its first sample to three quarters of it, and nothing twice."""
    ahead, asked = _ahead(), _Asked()
    _advance(ahead, asked, position=0)
    assert blocks_of(0).tolist() == asked.blocks

    counts = [len(_advance(ahead, asked, position=position)) for position in range(1, _STEP)]

    assert _STEP_BLOCKS == sum(counts) == sum(counts[:75])
    assert max(counts) <= _STEP_BLOCKS // 8
    assert abs(sum(counts[:37]) - _STEP_BLOCKS // 2) <= _STEP_BLOCKS // 8
    assert len(set(asked.blocks)) == len(asked.blocks)


def test_neighbours_are_asked_for_at_once() -> None:
    """A run that is cut would take two reads."""
    ahead, asked = _ahead(), _Asked()
    for position in range(0, _LENGTH, 3):
        _advance(ahead, asked, position=position)

    assert all(not call.size % 2 for call in asked.calls)
    assert all((call[::2] + 1 == call[1::2]).all() for call in asked.calls)


def test_the_rest_of_a_run_is_asked_for_with_its_first_part() -> None:
    """A run that goes on into the next step is one read, and not asked for again there."""
    steps, asked = _CutSteps(), _Asked()
    ahead = StepsAhead(steps, range(1), last_epoch=0, spare_samples=lambda: _STEP)
    for position in range(0, _LENGTH, 3):
        _advance(ahead, asked, position=position)

    assert all(not call.size % 2 for call in asked.calls)
    assert len(set(asked.blocks)) == len(asked.blocks) == _LENGTH // _STEP * 8 + 2


class _CutSteps(_Steps):
    """Steps of nine blocks, the last of which is the first of the next step's first run."""

    def step_blocks(self, epoch: int, lane: int, place: int) -> _Step | None:
        """Return a step."""
        del epoch, lane
        number = place // _STEP
        blocks = np.arange(number * 8, number * 8 + 9)
        return _Step(number * _STEP, (number + 1) * _STEP, blocks)


def test_room_to_spare_is_used() -> None:
    """With room for three more steps three are asked for; with less than one none is."""
    ahead, asked = _ahead(spare=3 * _STEP), _Asked()
    without, nothing = _ahead(spare=_STEP - 1), _Asked()

    _advance(ahead, asked, position=0)
    _advance(without, nothing, position=0)

    assert [] == nothing.calls
    assert [block for number in range(3) for block in blocks_of(number).tolist()] == asked.blocks


def test_the_next_epoch_follows_unless_this_is_the_last() -> None:
    """Its first step is asked for during the last one."""
    going_on, ending = _Asked(), _Asked()
    _advance(_ahead(), going_on, position=_LENGTH - 1)
    _advance(_ahead(last_epoch=0), ending, position=_LENGTH - 1)

    assert [*blocks_of(9).tolist(), *blocks_of(0).tolist()] == going_on.blocks
    assert blocks_of(9).tolist() == ending.blocks


def test_nothing_follows_a_step_that_is_a_whole_epoch() -> None:
    """Its blocks are those of the next epoch, however much room there is."""
    asked = _Asked()
    steps = _WholeStep()
    ahead = StepsAhead(steps, range(1), last_epoch=None, spare_samples=lambda: 4 * _LENGTH)
    for position in range(0, _LENGTH, 100):
        _advance(ahead, asked, position=position)

    assert [] == asked.calls


class _WholeStep(_Steps):
    """One step, which is the epoch."""

    def step_blocks(self, epoch: int, lane: int, place: int) -> _Step | None:
        """Return the step."""
        del epoch, lane, place
        return _Step(0, _LENGTH, blocks_of(0))


@settings(max_examples=100)
@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=60),
    st.integers(0, _LENGTH - 1),
    st.integers(_STEP, 450),
)
def test_a_step_has_been_asked_for_before_it_begins(
    jumps: list[int], start: int, spare: int
) -> None:
    """Wherever a stream begins and however large its batches are."""
    ahead, asked, at = _ahead(spare=spare), _Asked(), start
    _advance(ahead, asked, position=at)
    for jump in jumps:
        at += min(jump, _STEP)
        epoch, position = divmod(at, _LENGTH)
        _advance(ahead, asked, epoch=epoch, position=position)

        known = set(asked.blocks)
        assert known.issuperset(blocks_of(position // _STEP).tolist())
    assert len(set(asked.blocks)) == len(asked.blocks)
