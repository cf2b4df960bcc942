"""Pace the turns of a caller with many waiting calls, while other callers are present.

Five hundred clients of one caller take turns as fast as they are given, and the streams that they
open take the processors away from all other streams. Their calls are legitimate, so they wait a
little longer in their line, where waiting costs nothing.

Contract:

1. A caller with at least `MANY` waiting calls has a turn no sooner than `TURN_S` after its last, as
   long as another caller is present.
2. A caller is present while it has a running call, and for `AWAY_S` after its last turn and after
   the end of its last call.
3. The turn of a call that its client has reset does not count: nothing was done for it, and there
   may be thousands before calls whose client still waits.
4. Callers that are no longer present are forgotten.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

MANY = 8
"""The number of ranks on most hosts (arbitrary)."""

TURN_S = 0.01
"""A hundred streams a second; without this a herd got 145 a second on two processors
(docs/decisions/calls-wait-without-a-thread.md)."""

AWAY_S = 1.0
"""A caller that reads each batch with a separate call is present between two of them."""


class Pace:
    """The pace of one server; not thread-safe.

    Args:
        turn_s: Seconds between two turns of a caller with many calls.
        now: Returns monotonic seconds.
    """

    def __init__(
        self, *, turn_s: float = TURN_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._turn_s = turn_s
        self._now = now
        # When each caller was last seen, the least recent first.
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._calls: Counter[str] = Counter()
        self._turn_at: dict[str, float] = {}

    @property
    def known(self) -> int:
        """Return the number of callers that are remembered."""
        return max(len(self._seen), len(self._turn_at), len(self._calls))

    def wait_s(self, caller: str, waiting: int) -> float:
        """Return the seconds until a caller may have its next turn; 0 for now.

        Args:
            caller: The caller.
            waiting: The number of its waiting calls.
        """
        if waiting < MANY or caller not in self._turn_at:
            return 0.0
        self._forget()
        if self._seen.keys() <= {caller}:
            return 0.0
        return max(0.0, self._turn_at.get(caller, 0.0) + self._turn_s - self._now())

    def turn_given(self, caller: str) -> None:
        """Count a turn of a caller; `call_ended` must follow."""
        self._calls[caller] += 1
        self._turn_at[caller] = self._now()
        self._see(caller)

    def call_ended(self, caller: str, *, was_reset: bool = False) -> None:
        """Count the end of a call.

        Args:
            caller: The caller of the call.
            was_reset: Whether the client was gone before anything was sent; if so, the turn does
                not count.
        """
        if was_reset:
            self._turn_at[caller] -= self._turn_s
        self._calls[caller] -= 1
        if not self._calls[caller]:
            del self._calls[caller]
        self._see(caller)
        self._forget()

    def _see(self, caller: str) -> None:
        self._seen[caller] = self._now()
        self._seen.move_to_end(caller)

    def _forget(self) -> None:
        """Forget callers that are no longer present."""
        before = self._now() - AWAY_S
        while self._seen:
            caller, seen_at = next(iter(self._seen.items()))
            if seen_at > before:
                return
            if caller in self._calls:
                self._see(caller)
            else:
                del self._seen[caller], self._turn_at[caller]
