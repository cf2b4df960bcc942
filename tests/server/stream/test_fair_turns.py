"""Tests of turns: bounded, fair, and no stop where one takes long."""

from __future__ import annotations

import threading
import time

import pytest

from headrace.server.stream.fair_turns import _BUSY_S, CallerTurns, Turns
from support.waiting import until

# Far longer than a test: nobody takes a turn more because a machine is slow.
_NEVER_S = 3600.0


def _thread(work: threading.Thread) -> threading.Thread:
    work.start()
    return work


def test_turns_are_bounded() -> None:
    """However many threads come, no more than two work at a time, and all get their turn."""
    all_turns, lock = Turns(2, stuck_s=_NEVER_S), threading.Lock()
    turns = all_turns.of("caller")
    working, most, done = 0, 0, 0

    def work() -> None:
        nonlocal working, most, done
        for _ in range(50):
            with turns.turn():
                with lock:
                    working += 1
                    most = max(most, working)
                with lock:
                    working -= 1
                    done += 1

    threads = [
        _thread(threading.Thread(target=work, name=f"test-{n}", daemon=True)) for n in range(8)
    ]
    _join(threads)

    assert 400 == done
    assert 2 >= most
    assert 2 == all_turns._free


def test_who_came_first_goes_first() -> None:
    """Threads that wait get their turns in the order in which they came."""
    turns, order = Turns(1, stuck_s=_NEVER_S).of("caller"), list[str]()

    turns.begin()
    threads = [_line_up(turns, order, str(number), 0.0) for number in range(5)]
    turns.end(0.0)
    _join(threads)

    assert ["0", "1", "2", "3", "4"] == order


def test_a_long_turn_stops_nobody() -> None:
    """While a turn waits for a store others go on, and when it ends there are as many as before."""
    all_turns = Turns(1)
    turns = all_turns.of("caller")
    is_over, has_begun = threading.Event(), threading.Event()

    def stay() -> None:
        with turns.turn():
            has_begun.set()
            assert is_over.wait(60)

    staying = _thread(threading.Thread(target=stay, name="test-stay"))
    assert has_begun.wait(60)
    for _ in range(3):
        with turns.turn():
            pass
    is_over.set()
    staying.join(60)

    assert 1 == all_turns._free
    assert 0 == all_turns._lent


def test_a_turn_ends_with_its_error() -> None:
    """What fails in a turn leaves it to the next."""
    turns = Turns(1)
    with pytest.raises(ValueError, match="x"), turns.of("caller").turn():
        raise ValueError("x")

    assert 1 == turns._free


def _line_up(turns: CallerTurns, order: list[str], name: str, seconds: float) -> threading.Thread:
    """Let a thread wait for a turn that counts as so long; return when it waits."""
    before = len(turns.waiting)

    def work() -> None:
        turns.begin()
        order.append(name)
        turns.end(seconds)

    thread = _thread(threading.Thread(target=work, name=f"test-{name}", daemon=True))
    assert until(lambda: len(turns.waiting) > before, every_s=0.001), f"{name} got no place in line"
    return thread


def _join(threads: list[threading.Thread]) -> None:
    """Wait for the ends of threads; one that stays is a failure."""
    for thread in threads:
        thread.join(60)
    assert [] == [thread.name for thread in threads if thread.is_alive()]


def test_a_caller_with_one_stream_goes_before_the_many_of_another() -> None:
    """Who waits with one thread gets its turn after one of the caller that has eight."""
    turns, order = Turns(1, stuck_s=_NEVER_S), list[str]()
    many, one = turns.of("many"), turns.of("one")

    many.begin()
    threads = [_line_up(many, order, "many", 0.01) for _ in range(8)]
    threads.append(_line_up(one, order, "one", 0.01))
    many.end(0.0)
    _join(threads)

    assert 1 >= order.index("one")


def test_callers_have_equal_time_not_equally_many_turns() -> None:
    """Beside turns of 40 ms, a caller whose turns take 10 ms has four of them for each."""
    turns, order = Turns(1, stuck_s=_NEVER_S), list[str]()
    large, small = turns.of("large"), turns.of("small")

    large.begin()
    threads = [_line_up(large, order, "large", 0.04) for _ in range(8)]
    threads += [_line_up(small, order, "small", 0.01) for _ in range(16)]
    large.end(0.0)
    _join(threads)

    starts = order[:20]
    assert 15 <= starts.count("small") <= 16


@pytest.mark.parametrize("has_turns", [True, False])
def test_a_caller_that_was_away_does_not_catch_up(*, has_turns: bool) -> None:
    """Time that a caller did not use while it was away is not its own when it comes again.

    Nor is what the other did without turns, as messages to a client that reads slowly.
    """
    turns, order = Turns(1, stuck_s=_NEVER_S), list[str]()
    busy, away = turns.of("busy"), turns.of("away")
    for _ in range(100):
        if has_turns:
            busy.begin()
            busy.end(1.0)
        else:
            turns.count(busy, 1.0)

    busy.begin()
    threads = [_line_up(away, order, "away", 1.0) for _ in range(5)]
    threads += [_line_up(busy, order, "busy", 1.0) for _ in range(5)]
    busy.end(0.0)
    _join(threads)

    assert 2 <= order[:5].count("away") <= 3


def test_a_caller_is_alone_unless_another_took_a_turn_a_moment_ago() -> None:
    """Its own turns do not count, nor do streams of others that wait for their clients."""
    turns = Turns(1)
    mine, other = turns.of("mine"), turns.of("other")
    for one in (other, mine, mine):
        with one.turn():
            pass

    assert not turns.is_alone("mine")
    assert not turns.is_alone("other")

    for _ in range(4):
        time.sleep(_BUSY_S / 2)
        with mine.turn():
            pass
    assert turns.is_alone("mine")
    assert not turns.is_alone("other")


def test_a_turn_is_given_up_while_another_caller_waits() -> None:
    """Who leaves the line, or has its turn already, leaves it to the caller that waits."""
    turns = Turns(1)
    leaving, staying = turns.of("leaving"), turns.of("staying")
    with staying.turn():
        wait = leaving.queued()
        next(wait)
        wait.close()
    with leaving.turn():
        wait = leaving.queued()
        next(wait)
    wait.close()

    assert 1 == turns._free
    assert [] == turns._waiting
