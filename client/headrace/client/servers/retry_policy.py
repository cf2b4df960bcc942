"""How long a reader continues after failures, and its error when it stops: no I/O but the log.

Contract of `Patience.fail`:

1. A permanent failure is raised as it is. So is a first contact that shows a mistake in the address
   or in TLS, if there is no other server to ask.
2. For a temporary failure, it returns the seconds to wait: none if a server asks to go elsewhere,
   the server's own time if it names one (never none twice in a row), otherwise a random time below
   a bound that doubles.
3. After ``give_up_s`` since the last event (``connect_s`` before the first message), the last
   failure is raised with its history: the hop that failed, since when, and what was tried.
4. A fault is logged once, however many tries it costs; so is its end.
5. The reader waits for a server that evaluates a filter as long as it makes progress; a warning
   every `_TOLD_S` says how far it is.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import SystemRandom

from headrace.client.options.settings import Backoff, Deadlines
from headrace.client.servers.status import may_retry, retry_after_s
from headrace.errors import (
    DrainingError,
    FilterPendingError,
    HeadraceError,
    RebalanceError,
    ServerUnreachableError,
    StoreUnavailableError,
    StreamCorruptError,
)

_log = logging.getLogger(__name__)

# How long the wait for a server that may just be starting is not logged (arbitrary).
_PATIENT_S = 2.0

# How often the progress of a filter is logged (arbitrary).
_TOLD_S = 10.0

_HOPS: tuple[tuple[type[HeadraceError], str], ...] = (
    (ServerUnreachableError, "the connection to the server"),
    (StoreUnavailableError, "the server's object store"),
    (StreamCorruptError, "the data on its way from the server"),
)


class Patience:
    """What a reader remembers of its failures since the last event."""

    def __init__(
        self, deadlines: Deadlines, backoff: Backoff, *, reading: str, has_others: bool = True
    ) -> None:
        """Start before the first try.

        Args:
            deadlines: How long to continue.
            backoff: The waits between two tries.
            reading: The dataset's name, for messages.
            has_others: Whether there may be more than one server to ask.
        """
        self._deadlines, self._backoff = deadlines, backoff
        self._reading = reading
        self._has_others = has_others
        self._has_heard = False
        self._since: float | None = None
        self._tried: Counter[str] = Counter()
        self._is_logged = False
        self._is_told = False
        self._filter_done = ""
        self._filter_told: float | None = None
        self.attempt = 0
        self.moves = 0

    def start(self, now: float) -> None:
        """Count the time of failures from now, not from the first of them.

        Args:
            now: Seconds of the clock of `fail`.
        """
        self._since = now

    def count_from(self, then: float) -> None:
        """Count the time of failures from a moment, unless it already counts from an earlier one.

        Args:
            then: Seconds of the clock of `fail`.
        """
        self._since = then if self._since is None else min(self._since, then)

    @property
    def is_first_contact(self) -> bool:
        """Whether the only server has neither answered nor failed before."""
        return not (self._has_others or self._has_heard or self.attempt)

    def hear(self) -> None:
        """Note that a server sent something."""
        self._has_heard = True

    def succeed(self) -> None:
        """Note an event, and forget earlier failures."""
        if self._is_logged:
            _log.warning("the stream of %r continues after %d tries", self._reading, self.attempt)
        self.attempt = 0
        self.moves = 0
        self._since = None
        self._tried.clear()
        self._is_logged = False

    def fail(self, error: HeadraceError, *, asked: str, now: float) -> float:
        """Return the seconds to wait before the next try.

        Args:
            error: Why this try failed.
            asked: The server that was asked.
            now: Seconds of a clock that never goes back.

        Raises:
            HeadraceError: The failure is permanent, or has lasted for too long.
        """
        if isinstance(error, FilterPendingError):
            self._wait_for_filter(error, now)
        is_mistake = self.is_first_contact and "mistake" in error.metadata
        since = self._since = now if self._since is None else self._since
        self.attempt += 1
        # After a request to come back, the reader starts at its preferred replica.
        if self.attempt > 1 or not isinstance(error, RebalanceError):
            self.moves += 1
        self._tried[asked] += 1
        if is_mistake or not may_retry(error):
            raise error
        limit = self._deadlines.give_up_s if self._has_heard else self._deadlines.connect_s
        if now - since >= limit:
            raise self._gave_up(error, now - since) from error
        if isinstance(error, FilterPendingError):
            wait_s = retry_after_s(error) or self._backoff.most_s
            return min(wait_s, max(0.0, since + limit - now))
        if self.attempt == 1:
            self._log_first(error)
        elif (
            not (self._has_heard or self._is_told)
            and _PATIENT_S <= now - since <= limit - _PATIENT_S
        ):
            self._is_told = True
            _log.warning(
                "no answer for %.0f s, reading %r; trying for up to %g s (%s)",
                now - since,
                self._reading,
                limit,
                error,
            )
        return min(self._wait_s(error), max(0.0, since + limit - now))

    def _wait_for_filter(self, error: FilterPendingError, now: float) -> None:
        self._has_heard = True
        done = error.metadata.get("done", "")
        if done != self._filter_done:
            self._filter_done, self._since = done, now
        if self._filter_told is None:
            self._filter_told = now - _TOLD_S + _PATIENT_S
        if now - self._filter_told >= _TOLD_S:
            self._filter_told = now
            _log.warning("reading %r: %s", self._reading, error.message)

    def _wait_s(self, error: HeadraceError) -> float:
        told_s = retry_after_s(error)
        if told_s is not None:
            # A server that asks for no wait again and again gets a short one.
            return told_s if self.attempt == 1 else max(told_s, self._backoff.first_s / 2)
        if self.attempt == 1 and isinstance(error, RebalanceError | DrainingError):
            return 0.0
        return self._backoff.wait_s(self.attempt - 1, SystemRandom().random())

    def _log_first(self, error: HeadraceError) -> None:
        # At a low level while a server may just be starting, or if the failure is planned.
        is_plan = isinstance(error, RebalanceError) or not self._has_heard
        level = logging.INFO if is_plan else logging.WARNING
        _log.log(level, "the stream of %r broke; reconnecting (%s)", self._reading, error)
        self._is_logged = not is_plan

    def _gave_up(self, error: HeadraceError, seconds: float) -> HeadraceError:
        what = "no batch" if self._has_heard else "no answer"
        hop = next((name for cls, name in _HOPS if isinstance(error, cls)), "the server")
        since = datetime.now(UTC) - timedelta(seconds=seconds)
        tries = ", ".join(f"{asked} ({count})" for asked, count in self._tried.items())
        noun = "try" if self.attempt == 1 else "tries"
        return type(error)(
            f"{what} for {seconds:.1f} s, since {since:%Y-%m-%d %H:%M:%S} UTC, in {self.attempt} "
            f"{noun} at {tries}, reading {self._reading!r}; what fails is {hop}: {error.message}",
            **{
                **error.metadata,
                "targets": ", ".join(self._tried),
                "attempts": self.attempt,
                "hop": hop,
                "since": since.isoformat(timespec="seconds"),
            },
        )
