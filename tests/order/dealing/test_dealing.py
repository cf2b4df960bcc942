"""Claims about the steps of lanes.

How they could give a wrong sample: a step that depends on the places or lanes asked for before.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace.order.dealing.dealing import Dealings

_KEYS = np.array([7], np.uint64)


@given(
    lengths=st.lists(st.integers(1, 3000), min_size=1, max_size=3),
    memory=st.integers(1, 400),
    ramp=st.integers(0, 50),
    asked=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2999)), min_size=1, max_size=30),
)
def test_the_step_of_a_place_does_not_depend_on_what_was_asked_before(
    lengths: list[int], memory: int, ramp: int, asked: list[tuple[int, int]]
) -> None:
    """Whichever places of whichever lanes come in whichever order, and the place is in its step.

    Single steps are worked out otherwise than many, and those that are not dealt more simply.
    """
    counts, memories = np.array(lengths), np.full(len(lengths), memory)
    firsts = np.full(len(lengths), ramp)
    dealings = Dealings(counts, memories, firsts)
    for number, wanted in asked:
        lane = number % len(lengths)
        place = wanted % lengths[lane]

        step, start, length = dealings.step_at(lane, place)

        assert (step, start, length) == Dealings(counts, memories, firsts).step_at(lane, place)
        assert start <= place < start + length
        assert [step] == dealings.steps_of(lane, np.array([place]))
        steps = np.array([step])
        assert [start] == dealings.step_start(lane, steps)
        assert [length] == dealings.step_length(lane, steps)
        slots = np.arange(length)
        offsets = dealings.offsets(_KEYS, _KEYS, lane, np.full_like(slots, step), slots)
        is_dealt = dealings.is_dealt(lane, step)
        assert is_dealt or np.array_equal(start + slots, offsets)
