"""The one retry loop of the stores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import SystemRandom
from typing import TypeVar

from headrace.errors import StoreUnavailableError
from headrace.storage.store.options import RetryPolicy

# Not the generator that the process's own code may give a seed, equal on all ranks of a job.
_RANDOM = SystemRandom()

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)

_heard = threading.local()


@contextmanager
def hearing_failures(listener: Callable[[StoreUnavailableError], None]) -> Iterator[None]:
    """Report each failed attempt of this thread to a listener, even if a later one succeeds.

    This tells a reader with many concurrent requests that the store throttles, so that it sends
    fewer.
    """
    before = getattr(_heard, "listener", None)
    _heard.listener = listener
    try:
        yield
    finally:
        _heard.listener = before


def call_with_retries(
    attempt: Callable[[], _T],
    policy: RetryPolicy,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    uniform: Callable[[], float] = _RANDOM.random,
) -> _T:
    """Call ``attempt`` until it succeeds, fails permanently, or the policy is exhausted.

    Args:
        attempt: Raises `StoreUnavailableError` for temporary failures, and any other error for
            permanent ones.
        policy: The limits in number and time.
        sleep: Waits a number of seconds.
        clock: Returns monotonic seconds.
        uniform: Returns random numbers in ``[0, 1)``.

    Raises:
        StoreUnavailableError: The last failure, with the number of attempts and their time.
    """
    started = clock()
    for number in range(1, policy.attempts + 1):
        try:
            return attempt()
        except StoreUnavailableError as error:
            if (listener := getattr(_heard, "listener", None)) is not None:
                listener(error)
            wait_s = uniform() * min(policy.cap_s, policy.base_s * 2 ** (number - 1))
            spent_s = clock() - started
            if number == policy.attempts or spent_s + wait_s > policy.budget_s:
                raise StoreUnavailableError(
                    f"{error.message}; gave up after {number} attempts in {spent_s:.1f} s",
                    attempts=number,
                    **error.metadata,
                ) from error
            _LOG.info("attempt %d failed, retrying in %.2f s: %s", number, wait_s, error.message)
            sleep(wait_s)
    raise AssertionError(policy)  # unreachable: attempts >= 1
