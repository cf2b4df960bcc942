"""Pieces run in threads, which end with the conversion."""

import _thread
import threading

import pytest

from headrace.converter.local.threads import run_each

_WAIT_S = 60.0


def test_an_interrupt_ends_all_calls_also_while_they_are_submitted() -> None:
    """The first call interrupts the main thread, which still has thousands to submit."""
    stop, begun = threading.Event(), []

    def run(number: int) -> None:
        begun.append(number)
        _thread.interrupt_main()
        stop.wait(_WAIT_S)

    with pytest.raises(KeyboardInterrupt):
        run_each(run, 20_000, threads=1, name="interrupted", stop=stop, tell=lambda: None)

    assert stop.is_set()
    assert [0] == begun
