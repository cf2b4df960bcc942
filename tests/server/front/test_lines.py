"""Tests of lines: callers take turns, and what waits and runs is bounded."""

from __future__ import annotations

import pytest

from headrace.server.front.lines import Lines
from headrace.server.front.networks import network_of


def _popped(lines: Lines[int]) -> list[tuple[str, int]]:
    found = []
    while (one := lines.pop()) is not None:
        found.append(one)
    return found


def test_lines_give_turns_to_callers() -> None:
    """One of each caller in turn, those of one in the order of coming, and all of them."""
    lines = Lines[int](most=1000)
    for number, caller in enumerate("aaabcca"):
        assert lines.append(caller, number)

    assert 7 == len(lines)
    assert [0, 3, 4, 1, 5, 2, 6] == [number for _, number in _popped(lines)]
    assert 0 == len(lines)


def test_each_turn_has_its_time() -> None:
    """One turn in so many seconds, whoever waits."""
    lines = Lines[int](most=1000, turn_s=1.0)
    for number, caller in enumerate("aaab"):
        lines.append(caller, number)

    assert ("a", 0) == lines.pop(0.0)
    assert lines.pop(0.5) is None
    assert 0.5 == lines.wait_s(0.5)
    assert [("b", 3), ("a", 1), ("a", 2)] == [lines.pop(now) for now in (1.0, 2.0, 3.0)]
    assert float("inf") == lines.wait_s(9.0)


@pytest.mark.parametrize("lines", [Lines[int](most=4), Lines[int](most=1000, most_bytes=12)])
def test_what_waits_is_bounded_and_nobody_has_more_than_half(lines: Lines[int]) -> None:
    """In items and in bytes; what does not fit is not taken, until there is room again."""
    taken = [lines.append(caller, 0, size=3) for caller in "aaaabbbbc"]

    assert [True, True, False, False, True, True, False, False, False] == taken
    assert ["a", "b", "a", "b"] == [caller for caller, _ in _popped(lines)]
    assert lines.append("a", 0, size=3)


def test_what_runs_is_bounded_for_a_caller_and_for_all() -> None:
    """The next one has its turn when one of those before has ended."""
    lines = Lines[int](most=1000, most_running=64, most_of_caller=16)
    for caller in "abcdef":
        for number in range(17):
            lines.append(caller, number)

    seen = [caller for caller, _ in _popped(lines)]
    assert 64 == len(seen)
    assert 16 >= max(map(seen.count, "abcdef"))
    assert float("inf") == lines.wait_s(0.0)
    lines.ended("a")
    assert lines.pop() is not None

    alone = Lines[int](most=1000, most_running=64, most_of_caller=16)
    for number in range(17):
        alone.append("a", number)
    assert 16 == len(_popped(alone))
    alone.ended("a")
    assert ("a", 16) == alone.pop()


def test_those_who_wait_are_dropped_at_the_end() -> None:
    """And none has a turn after that."""
    lines = Lines[int](most=1000)
    lines.append("a", 0)
    lines.clear()

    assert (0, None) == (len(lines), lines.pop())


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("[2001:db8::1]", "2001:db8::/64"),
        ("2001:db8:0:0:ffff::2", "2001:db8::/64"),
        ("[fe80::1%eth0]", "fe80::/64"),
        ("[::ffff:10.1.2.3]", "10.1.2.3"),
        ("unix", "unix"),
    ],
)
def test_a_network_of_ipv6_is_one_and_an_ipv4_address_is_itself(host: str, network: str) -> None:
    """One machine may have all of the 64 bits."""
    assert network == network_of(host)
