"""What is known of servers whose lane cannot be used, so that few streams wait for it in vain."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

RETRY_S = 300.0

_log = logging.getLogger(__name__)


class Refusals:
    """Why the lanes of servers cannot be used, for `RETRY_S`; for any thread.

    Args:
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: dict[str, tuple[float, str]] = {}
        self._said: set[tuple[str, str]] = set()

    def why_not(self, address: str) -> str:
        """Return why a server's lane is not tried; empty if it is."""
        until, reason = self._until.get(address, (0.0, ""))
        return reason if self._now() < until else ""

    def note(self, address: str, reason: str, *, is_offered: bool) -> None:
        """Try a server's lane no more for a while.

        Args:
            address: The server.
            reason: Why.
            is_offered: Whether the server has one, so that somebody should look why it is not
                there. This is said once.
        """
        self._until[address] = (self._now() + RETRY_S, reason)
        if is_offered and (address, reason) not in self._said:
            self._said.add((address, reason))
            _log.warning(
                "the lane of %s cannot be used: %s; batches come over gRPC, which is slower, and "
                "the lane is tried again after %.0f s",
                address,
                reason,
                RETRY_S,
            )


REFUSALS = Refusals()
"""What this process knows."""
