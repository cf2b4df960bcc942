"""Credentials that a vendor gives for a while, such as a catalog for its tables.

Contract of `Lease`:

1. Renewed ahead: at 85 to 95 % of their life, at random, so that servers that started together do
   not ask together. One thread asks; the others go on with what there is.
2. Refused: `renew` asks at once, for all threads together. What was given in the last seconds and
   is refused all the same stays refused.
3. The vendor is away: what there is serves until it expires, and the vendor is asked again every
   few seconds. From then on every use is a `StoreUnavailableError`, which stores retry within their
   deadline.
4. The vendor refuses, or gives nothing: the same, with its own error, which nobody retries.
5. No wait but the vendor's own, which has a deadline.

Secrets are in no ``repr``, message or pickle. If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Protocol

from headrace.errors import StoreRefusedError, StoreUnavailableError

# Not the generator that the process's own code may give a seed, equal on all servers.
_RANDOM = SystemRandom()

_AHEAD = (0.85, 0.95)  # of a life: at most 1.18 renewals in one
_PAUSE_S = 5.0  # between two attempts (arbitrary; a vendor answers in 10 to 100 ms)


@dataclass(frozen=True, slots=True)
class Grant:
    """Credentials of a store, as a vendor gives them.

    Attributes:
        values: The credentials, by names that the store knows: ``access_key``, ``secret_key`` and
            ``session_token`` for S3; for others, options of their file system of fsspec.
        expires_at_s: When they end, in seconds since 1970; `None` if the vendor does not say.
    """

    values: Mapping[str, str] = field(repr=False)
    expires_at_s: float | None = None


class Vendor(Protocol):
    """Gives credentials; thread-safe and picklable."""

    @property
    def title(self) -> str:
        """What it is, for errors: ``the catalog 'prod'``."""

    def __call__(self) -> Grant:
        """Give credentials.

        Raises:
            StoreUnavailableError: It cannot be reached, also after a deadline of its own.
            StoreRefusedError: It refuses, or gives none.
        """


class Lease:
    """Credentials that are renewed as the contract above says; thread-safe.

    Stores of one table share a lease. A copy in another process asks the vendor itself.

    Args:
        vendor: Gives the credentials.
        first: What the vendor gave a moment ago, for whoever has asked it already.
        clock: Returns seconds since 1970.
        uniform: Returns random numbers in ``[0, 1)``.
    """

    def __init__(
        self,
        vendor: Vendor,
        *,
        first: Grant | None = None,
        clock: Callable[[], float] = time.time,
        uniform: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._vendor = vendor
        self._clock = clock
        self._uniform = uniform
        self._lock = threading.Lock()
        self._held: Grant | None = None
        self._given_at_s = self._tried_at_s = -1e18
        self._due_s = -1e18
        self._failure: StoreUnavailableError | StoreRefusedError | None = None
        if first is not None:
            self._hold(first, clock())

    def __reduce__(self) -> tuple[type[Lease], tuple[Vendor]]:
        return Lease, (self._vendor,)

    @property
    def title(self) -> str:
        """What gives the credentials, for errors."""
        return self._vendor.title

    @property
    def held(self) -> Grant | None:
        """The credentials that were last given out; nobody is asked."""
        return self._held

    def get(self) -> Grant:
        """Return credentials that have not expired.

        Raises:
            StoreUnavailableError: They have, and the vendor gives no others now.
            StoreRefusedError: The vendor refuses.
        """
        held, now = self._held, self._clock()
        if held is not None and now < self._due_s:
            return held
        if held is None or self._is_over(held, now):
            with self._lock:
                return self._after_the_end()
        if self._lock.acquire(blocking=False):
            try:
                self._renew_ahead(held, now)
            finally:
                self._lock.release()
        return self._held or held

    def renew(self, refused: Grant | None) -> bool:
        """Return whether there are other credentials than those that a store has refused.

        Raises:
            StoreUnavailableError: The vendor is away.
            StoreRefusedError: The vendor refuses.
        """
        with self._lock:
            now = self._clock()
            if self._held is not refused:
                return self._held is not None
            if now < self._given_at_s + _PAUSE_S:
                return False
            self._ask_unless_paused(now)
            return self._held is not refused

    def _after_the_end(self) -> Grant:
        now = self._clock()
        held = self._held
        if held is None or self._is_over(held, now):
            held = self._ask_unless_paused(now)
        return held

    def _renew_ahead(self, held: Grant, now: float) -> None:
        if self._held is not held:
            return  # another thread was first
        try:
            self._ask_unless_paused(now)
        except (StoreUnavailableError, StoreRefusedError):
            end_s = held.expires_at_s or now
            self._due_s = min(end_s, now + _PAUSE_S * (1 + self._uniform()))

    def _ask_unless_paused(self, now: float) -> Grant:
        failure = self._failure
        if failure is not None and now < self._tried_at_s + _PAUSE_S:
            raise type(failure)(failure.message, **failure.metadata)
        self._tried_at_s = now
        try:
            given = self._ask(now)
        except (StoreUnavailableError, StoreRefusedError) as error:
            self._failure = error
            raise
        self._failure = None
        self._hold(given, now)
        return given

    def _hold(self, given: Grant, now: float) -> None:
        self._held, self._given_at_s, self._due_s = given, now, self._due_of(given, now)

    def _ask(self, now: float) -> Grant:
        given = self._vendor()
        if self._is_over(given, now):
            raise StoreUnavailableError(
                f"{self.title} gave credentials that had already expired; set the clock of this "
                "machine, or that of the vendor"
            )
        return given

    def _due_of(self, given: Grant, now: float) -> float:
        if given.expires_at_s is None:
            return float("inf")  # a refusal will tell
        low, high = _AHEAD
        return now + (low + (high - low) * self._uniform()) * (given.expires_at_s - now)

    @staticmethod
    def _is_over(held: Grant, now: float) -> bool:
        return held.expires_at_s is not None and now >= held.expires_at_s
