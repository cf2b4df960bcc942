"""Ask somebody who may never answer, such as a catalog whose client has no timeouts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


class NoAnswerError(Exception):
    """There was no answer in time."""


def within(deadline_s: float, ask: Callable[[], _T], *, name: str) -> _T:
    """Call a function in a thread, which is given up after the deadline.

    Args:
        deadline_s: How long to wait, in seconds.
        ask: The function.
        name: The name of the thread.

    Raises:
        NoAnswerError: It did not return in time; it goes on, and nobody waits for it.
        BaseException: What the function raised.
    """
    answers: list[_T] = []
    failures: list[BaseException] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except BaseException as error:  # noqa: BLE001 - raised below, in the caller's thread
            failures.append(error)

    thread = threading.Thread(target=answer, name=name, daemon=True)
    thread.start()
    thread.join(deadline_s)
    if answers:
        return answers[0]
    if failures:
        raise failures[0]
    raise NoAnswerError(f"no answer within {deadline_s:g} s")
