"""How soon a caller who brings many calls at once has its next turn, beside others.

Five hundred clients of one caller take their turns as fast as they are given, and the streams that
these open take the processors from the streams of everybody else. Their calls are honest, so they
wait a little longer in their line, where one costs nothing.

Contract:

1. A caller of whom at least `MANY` calls wait has a turn no sooner than `TURN_S` after its last,
   as long as another caller is there.
2. A caller is there while a call of its goes on, and for `AWAY_S` after its last turn and after the
   end of its last call.
3. The turn of a call that its client has reset does not count: nothing was done for it, and there
   may be thousands before the calls that somebody waits for.
4. What is remembered of callers who are not there any more is let go.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

MANY = 8
"""The ranks of a host of most kinds (arbitrary)."""

TURN_S = 0.01
"""A hundred streams a second, of which a herd on two processors was given 145 without it
(docs/decisions/calls-wait-without-a-thread.md)."""

AWAY_S = 1.0
"""One who reads batch after batch by calls of their own is there between two of them."""


class Pace:
    """That of one server; for one thread at a time.

    Args:
        turn_s: Time between two turns of a caller who brings many.
        now: Seconds of a clock that never goes back.
    """

    def __init__(
        self, *, turn_s: float = TURN_S, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._turn_s = turn_s
        self._now = now
        # When each caller was seen last, the longest ago first.
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._calls: Counter[str] = Counter()
        self._turn_at: dict[str, float] = {}

    @property
    def known(self) -> int:
        """Return of how many callers something is remembered."""
        return max(len(self._seen), len(self._turn_at), len(self._calls))

    def wait_s(self, caller: str, waiting: int) -> float:
        """Return in how many seconds a caller may have its next turn; 0 for now.

        Args:
            caller: Whose calls wait.
            waiting: How many.
        """
        if waiting < MANY or caller not in self._turn_at:
            return 0.0
        self._forget()
        if self._seen.keys() <= {caller}:
            return 0.0
        return max(0.0, self._turn_at.get(caller, 0.0) + self._turn_s - self._now())

    def turn_given(self, caller: str) -> None:
        """Note that a call of a caller goes on; `call_ended` must follow."""
        self._calls[caller] += 1
        self._turn_at[caller] = self._now()
        self._see(caller)

    def call_ended(self, caller: str, *, was_reset: bool = False) -> None:
        """Note the end of a call.

        Args:
            caller: The caller that it belongs to.
            was_reset: Whether nothing was sent before its client was gone; its turn is given back.
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
        """Let those go who are not there any more."""
        before = self._now() - AWAY_S
        while self._seen:
            caller, seen_at = next(iter(self._seen.items()))
            if seen_at > before:
                return
            if caller in self._calls:
                self._see(caller)
            else:
                del self._seen[caller], self._turn_at[caller]
