"""What signals raise waits until a call has ended, and handlers are as they were after it."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from headrace.client.reader.interrupts import HeldInterrupts
from support.interrupt_points import InterruptAt


class _StoppedError(Exception):
    """What a handler of the test raises."""


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """Signals that a handler saw, which raises for SIGTERM and only notes SIGINT."""
    noted: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        noted.append(number)
        if number == signal.SIGTERM:
            raise _StoppedError

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = [signal.getsignal(number) for number in before]
    yield noted
    assert handlers == [signal.getsignal(number) for number in before]
    for number, handler in before.items():
        signal.signal(number, handler)


def test_what_a_handler_raises_comes_at_the_end(seen: list[int]) -> None:
    """Once, whatever else came: the handler ran at once each time, and the call was told."""
    told: list[None] = []
    reached = False

    def call() -> None:
        nonlocal reached
        with HeldInterrupts(lambda: told.append(None)) as interrupts:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
            reached = interrupts.held is not None and len(seen) == 2

    with pytest.raises(_StoppedError):
        call()
    assert reached
    assert 2 == len(told)


def test_a_handler_that_raises_nothing_ends_nothing(seen: list[int]) -> None:
    """A program that only notes a signal reads on."""
    told: list[None] = []
    with HeldInterrupts(lambda: told.append(None)) as interrupts:
        os.kill(os.getpid(), signal.SIGINT)

        assert [signal.SIGINT] == seen
        assert interrupts.held is None
    assert [] == told


def _hold() -> None:
    with HeldInterrupts(lambda: None):
        pass


def test_handlers_live_on_wherever_two_interrupts_come(seen: list[int]) -> None:
    """Each of them is run, and raises, also where the second comes while handlers are put back."""
    stops = signal.getsignal(signal.SIGTERM)
    for gap in itertools.count():
        for next_gap in range(12):
            points = InterruptAt(gap, next_gap)
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            with contextlib.suppress(KeyboardInterrupt), points:
                _hold()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            seen.clear()
            with pytest.raises(_StoppedError):
                signal.raise_signal(signal.SIGTERM)
            assert [signal.SIGTERM] == seen
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, stops)
        if not points.sent:
            break

    assert gap > 8


def test_it_hides_the_failure_that_it_made(seen: list[int]) -> None:
    """A call that was told to end fails; the loop gets what the handler raised."""
    del seen

    def call() -> None:
        with HeldInterrupts(lambda: None):
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError

    with pytest.raises(_StoppedError):
        call()


def test_other_threads_have_no_handlers_to_hold(seen: list[int]) -> None:
    """Signals are Python's main thread's alone: nothing is changed there."""
    del seen
    changed: list[bool] = []

    def look() -> None:
        before = signal.getsignal(signal.SIGINT)
        with HeldInterrupts(lambda: None):
            changed.append(signal.getsignal(signal.SIGINT) is not before)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(timeout=60)
    assert [False] == changed
