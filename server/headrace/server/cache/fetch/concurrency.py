"""Find by trial how many reads of one store should run concurrently.

A remote store is fastest with many concurrent reads, a local one with few: beyond some number they
only wait for each other. No setting fits both, so the limit follows the throughput.

Contract:

1. The limit stays in ``[least, most]`` and starts at ``first``. When ``first`` reads have ended and
   more were waiting, twice the limit is tried. The first batch of a stream needs few reads; those
   that follow need more than later ones, whose blocks are partly cached.
2. It is judged over windows of two reads for each allowed one and at least `_WINDOW_S`, and only if
   it held reads back, because otherwise it makes no difference.
3. After a window with more bytes a second than the one before, the limit grows further. If growing
   did not help, each read only takes longer. The limit then goes back, and stays there for a time
   that doubles with each failed trial.
4. If the store throttled reads, or could not be reached, the limit shrinks by a third. Once it
   answers again, the limit doubles from window to window up to what the first of these cuts left.
5. If the limit has been the same for long, one window tries a lower one, which stays if it is as
   fast.

If the code differs, the code is wrong.

Source: hill climbing as in "Netflix/concurrency-limits", but with throughput in place of latency,
because a store's latency also varies without load; the immediate decrease is that of TCP.
"""

from __future__ import annotations

FIRST_LIMIT = 16
"""The limit at the start (measured: tests/benchmarks/bench_cold_store.py)."""

_WINDOW_S = 0.25
_GROWTH = 1.25
# A quarter more reads bring at most a quarter more; a fifth of that is not noise (arbitrary).
_GAIN = 1.05
_LOSS = 0.97
_SHRINK = 2 / 3
_THROTTLED = 0.01
# One read in a thousand is refused anyway, and so are two in a hundred now and then.
_LEAST_THROTTLED = 4
_FIRST_REST = 4
_LONGEST_REST = 64


class Concurrency:
    """The limit for one store; not thread-safe.

    Args:
        most: The highest limit.

    Attributes:
        limit: The most concurrent prefetches.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._least = min(2, most)
        self.limit = min(FIRST_LIMIT, most)
        # The limit to go back to, and its throughput; 0 without a trial.
        self._before = 0
        self._rate_before = 0.0
        # Whether the last window was throttled, and what the first cut of such windows left.
        self._is_throttled = False
        self._cut = 0
        self._rest = 0
        self._next_rest = _FIRST_REST
        self._is_shrinking = False
        self._is_first = True
        self._begin(None)

    def _begin(self, now: float | None) -> None:
        self._began = now
        self._reads = self._throttled = self._bytes = 0
        self._held_back = False

    def hold_back(self) -> None:
        """Record that a read had to wait because of the limit."""
        self._held_back = True

    def throttled(self) -> None:
        """Record that the store throttled a read, or could not be reached."""
        self._throttled += 1

    def ended(self, size: int, *, now: float) -> None:
        """Record the end of a read, and adapt the limit at the end of a window.

        Args:
            size: Bytes that the read returned.
            now: Monotonic seconds.
        """
        if self._began is None:
            self._began = now
        self._reads += 1
        self._bytes += size
        seconds = now - self._began
        if self._is_first and self._reads >= self.limit and seconds > 0:
            self._is_first = False
            if self._held_back and not self._throttled and self.limit < self._most:
                self._try_limit(2 * self.limit, self._bytes / seconds)
                self._begin(now)
                return
        if seconds < _WINDOW_S or self._reads < 2 * self.limit:
            return
        rate = self._bytes / seconds
        if self._throttled >= _LEAST_THROTTLED and self._throttled > _THROTTLED * self._reads:
            self._shrink()
        else:
            self._is_throttled = False
            self._adapt(rate)
        self._begin(now)

    def _adapt(self, rate: float) -> None:
        if self.limit < self._cut:
            self.limit = min(2 * self.limit, self._cut)
            return
        self._cut = 0
        if self._held_back:
            self._judge(rate)
        else:
            # The trial had no effect, so it is not judged.
            self._before = 0

    def _shrink(self) -> None:
        smaller = max(self._least, int(self.limit * _SHRINK))
        if self._is_throttled:
            # The rest does not double with each window in which a store is away.
            self.limit = smaller
        else:
            self._cut = smaller
            self._settle(smaller)
        self._is_throttled = True

    def _judge(self, rate: float) -> None:
        if self._before:
            self._compare(rate)
        elif self._rest:
            self._rest -= 1
        else:
            self._try(rate)

    def _compare(self, rate: float) -> None:
        """Keep the tried limit, or go back."""
        if self._is_shrinking:
            self._settle(self.limit if rate >= _LOSS * self._rate_before else self._before)
        elif rate >= _GAIN * self._rate_before:
            self._next_rest = _FIRST_REST
            self._grow(rate)
        else:
            self._settle(self._before)

    def _try(self, rate: float) -> None:
        """Try a lower limit every second time, and a higher one otherwise."""
        self._is_shrinking = not self._is_shrinking
        smaller = int(self.limit / _GROWTH)
        if self._is_shrinking and smaller >= self._least and self._next_rest > _FIRST_REST:
            self._try_limit(smaller, rate)
        else:
            self._is_shrinking = False
            self._grow(rate)

    def _grow(self, rate: float) -> None:
        larger = min(self._most, max(self.limit + 1, int(self.limit * _GROWTH)))
        if larger == self.limit:
            self._settle(self.limit)
            return
        self._try_limit(larger, rate)

    def _try_limit(self, limit: int, rate: float) -> None:
        self._before, self._rate_before, self.limit = self.limit, rate, min(limit, self._most)

    def _settle(self, limit: int) -> None:
        self.limit, self._before = limit, 0
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
