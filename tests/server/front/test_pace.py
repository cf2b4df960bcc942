"""Tests of the pace of callers who bring many calls at once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.front.pace import AWAY_S, MANY, TURN_S, Pace


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_one_caller_alone_waits_for_nothing() -> None:
    """However many calls of it wait."""
    pace = Pace(now=_Clock())
    for _ in range(100):
        assert 0.0 == pace.wait_s("herd", 1000)
        pace.turn_given("herd")
        pace.call_ended("herd")


@pytest.mark.parametrize("is_open", [True, False])
def test_a_caller_beside_others_has_a_pace(*, is_open: bool) -> None:
    """Who is there has a call that goes on, or had one a moment ago; who has few is never held."""
    clock = _Clock()
    pace = Pace(now=clock)
    pace.turn_given("herd")
    pace.turn_given("other")
    if not is_open:
        pace.call_ended("other")

    assert 0.0 == pace.wait_s("herd", MANY - 1)
    assert 0.0 == pace.wait_s("newcomer", 1000)
    assert pytest.approx(TURN_S) == pace.wait_s("herd", MANY)
    clock.now_s += TURN_S
    assert 0.0 == pace.wait_s("herd", MANY)
    pace.turn_given("herd")
    assert 0.0 < pace.wait_s("herd", MANY)
    clock.now_s += AWAY_S
    pace.turn_given("herd")
    assert is_open == bool(pace.wait_s("herd", MANY))


_STEPS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.booleans(), st.floats(0.0, 2 * AWAY_S)), max_size=60
)


@settings(max_examples=200)
@given(_STEPS)
def test_only_those_who_are_there_hold_others_back(steps: list[tuple[str, bool, float]]) -> None:
    """Whatever came before: by a count of calls that goes on, and of the time since the last."""
    clock, open_calls, seen_s = _Clock(), dict.fromkeys("abcdef", 0), dict[str, float]()
    pace = Pace(now=clock)
    for caller, is_turn, later_s in steps:
        if is_turn:
            pace.turn_given(caller)
            open_calls[caller] += 1
            seen_s[caller] = clock.now_s
        elif open_calls[caller]:
            pace.call_ended(caller)
            open_calls[caller] -= 1
            seen_s[caller] = clock.now_s
        others = {
            other
            for other, last_s in seen_s.items()
            if other != caller and (open_calls[other] or last_s > clock.now_s - AWAY_S)
        }
        if is_turn:
            assert bool(others) == bool(pace.wait_s(caller, MANY))
        clock.now_s += later_s


def test_nothing_is_kept_of_those_who_left() -> None:
    """Addresses are callers too, and there are many."""
    clock = _Clock()
    pace = Pace(now=clock)
    for number in range(1000):
        pace.turn_given(f"host-{number}")
        pace.call_ended(f"host-{number}")
        clock.now_s += AWAY_S / 10

    assert pace.known <= 12


def test_the_turn_of_a_reset_call_is_given_back() -> None:
    """Of calls that nobody waits for any more, thousands may come before one that counts."""
    clock = _Clock()
    pace = Pace(now=clock)
    pace.turn_given("other")
    for _ in range(2048):
        pace.turn_given("herd")
        assert 0.0 < pace.wait_s("herd", MANY)
        pace.call_ended("herd", was_reset=True)
        assert 0.0 == pace.wait_s("herd", MANY)
    pace.turn_given("herd")
    pace.call_ended("herd")

    assert 0.0 < pace.wait_s("herd", MANY)
