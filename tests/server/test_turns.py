"""Tests of turns: bounded, fair, and no stop where one takes long."""

from __future__ import annotations

import threading

import pytest

from headrace.server._turns import Turns


def _thread(work: threading.Thread) -> threading.Thread:
    work.start()
    return work


def test_turns_are_bounded() -> None:
    """However many threads come, no more than two work at a time, and all get their turn."""
    turns, lock = Turns(2), threading.Lock()
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

    threads = [_thread(threading.Thread(target=work, name=f"test-{n}")) for n in range(8)]
    for thread in threads:
        thread.join(30)

    assert 400 == done
    assert 2 >= most
    assert 2 == turns._free


def test_who_came_first_goes_first() -> None:
    """Threads that wait get their turns in the order in which they came."""
    turns, order = Turns(1), list[int]()
    threads = []

    def work(number: int) -> None:
        with turns.turn():
            order.append(number)

    with turns.turn():
        for number in range(5):
            threads.append(_thread(threading.Thread(target=work, args=(number,), name="test")))
            while len(turns._waiting) + len(order) <= number:
                threading.Event().wait(0.001)
    for thread in threads:
        thread.join(30)

    assert [0, 1, 2, 3, 4] == order


def test_a_long_turn_stops_nobody() -> None:
    """While a turn waits for a store others go on, and when it ends there are as many as before."""
    turns = Turns(1)
    is_over, has_begun = threading.Event(), threading.Event()

    def stay() -> None:
        with turns.turn():
            has_begun.set()
            assert is_over.wait(30)

    staying = _thread(threading.Thread(target=stay, name="test-stay"))
    assert has_begun.wait(30)
    for _ in range(3):
        with turns.turn():
            pass
    is_over.set()
    staying.join(30)

    assert 1 == turns._free
    assert 0 == turns._lent


def test_a_turn_ends_with_its_error() -> None:
    """What fails in a turn leaves it to the next."""
    turns = Turns(1)
    with pytest.raises(ValueError, match="x"), turns.turn():
        raise ValueError("x")

    assert 1 == turns._free
