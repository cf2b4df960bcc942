"""Tests of actions that run at their time, once or again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from headrace.server.rpc.timers import Alarm, Alarms, Repeated

_WAIT_S = 60


@pytest.fixture
def alarms() -> Iterator[Alarms]:
    """A thread for the actions of a test."""
    with closing(Alarms()) as alarms:
        yield alarms


def test_a_repeated_action_that_fails_runs_again(
    alarms: Alarms, caplog: pytest.LogCaptureFixture
) -> None:
    """One failure is logged; the action is due again all the same."""
    has_failed, has_run_again = threading.Event(), threading.Event()

    def fail_once() -> None:
        if not has_failed.is_set():
            has_failed.set()
            raise RuntimeError("the first time only")
        has_run_again.set()

    repeated = Repeated(alarms, 0.001, fail_once)

    assert has_run_again.wait(_WAIT_S)
    repeated.call_off()
    assert ["the first time only"] == [
        str(record.exc_info[1]) for record in caplog.records if record.exc_info
    ]


class _ByHand(Alarms):
    """Keeps actions for the test to run, and calls off what it is told to in between."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Alarm] = []
        self.between: Callable[[], None] = lambda: None

    def after(self, seconds: float, action: Callable[[], object]) -> Alarm:
        del seconds
        self.between()
        self.kept.append(Alarm(action))
        return self.kept[-1]

    def run_last(self) -> None:
        """Run the latest action, unless it was called off."""
        action = self.kept[-1].action
        if action is not None:
            action()


def test_an_action_that_is_called_off_between_two_runs_does_not_run() -> None:
    """Another thread calls it off while its next run is being scheduled."""
    runs: list[int] = []
    with closing(_ByHand()) as alarms:
        repeated = Repeated(alarms, 1, lambda: runs.append(1))
        alarms.between = repeated.call_off
        alarms.run_last()
        alarms.run_last()

    assert [1] == runs
