"""Decide how many streams each worker should send away so that all have about the same number."""

from __future__ import annotations

from collections.abc import Mapping

# The kernel gives a new connection to any worker, so it takes a few rounds; if they change nothing,
# as for streams that share a connection, rounds become rare.
_FIRST_S = 1.0
_LONGEST_S = 60.0


class Rebalance:
    """Decide when and how streams move between workers. Not safe for several threads."""

    def __init__(self) -> None:
        self._interval_s = _FIRST_S
        self._due_at = 0.0

    def excess(self, counts: Mapping[int, int], now: float) -> dict[int, int]:
        """Return how many streams each worker should send away now.

        Args:
            counts: The number of streams by worker.
            now: On any clock, in seconds.
        """
        if not counts or max(counts.values()) - min(counts.values()) < 2:  # noqa: PLR2004 - otherwise they are as even as possible
            self._interval_s = _FIRST_S
            self._due_at = now + _FIRST_S
            return {}
        if now < self._due_at:
            return {}
        self._due_at = now + self._interval_s
        self._interval_s = min(self._interval_s * 1.5, _LONGEST_S)
        fair = -(-sum(counts.values()) // len(counts))
        return {worker: max(0, count - fair) for worker, count in counts.items() if count >= fair}
