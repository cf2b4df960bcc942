"""Find reads that are so slow that repeating them is probably faster.

A store takes several times as long as usual for one read in a hundred, and a connection may stall
for seconds. A batch waits for all its blocks, so its training loop waits for the slowest read.

Contract:

1. A read is slow if it has taken longer than a share `_SLOWEST` of the reads before it, and longer
   than `_LEAST_S`. No read is slow until `_LEAST_READS` have ended. Reads of a local disk never
   are, because there the machine itself is slow.
2. A slow read is repeated at most once, and a slow repeat is too. There is at most one repeat for
   `_A_TRIAL` reads: finished reads earn repeats, and at most `_MOST_SAVED` of them are saved up.
3. `_RESERVED` of these, which are there from the start, are for reads that have taken longer than
   `_STALLED_S`: while a loop waits for a stalled read, no others end and earn repeats.

If the code differs, the code is wrong.

Source: hedged requests of Dean and Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

from collections import deque

_SLOWEST = 0.97
_LEAST_S = 0.1  # arbitrary: several times the usual latency of a store in the same region
_LEAST_READS = 32
_KEPT_READS = 512
_EVERY = 16
_A_TRIAL = 20
_MOST_SAVED = 32  # four in a hundred reads may be slow, so the budget runs dry now and then
_RESERVED = 4
_STALLED_S = 0.5  # arbitrary: three times what one read in a hundred takes


class SlowReads:
    """Detects slow reads of one store; not thread-safe.

    Args:
        is_local: Whether the store is a disk of this machine.

    Attributes:
        threshold_s: The time after which a read is slow; infinite if not known yet.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self.threshold_s = float("inf")
        self._times: deque[float] = deque(maxlen=_KEPT_READS)
        self._count = 0
        self._saved = float(_RESERVED)

    def can_ask_again(self, seconds: float) -> bool:
        """Return whether the budget allows to repeat a read that has taken so long."""
        return self._saved >= 1 + (0 if seconds > _STALLED_S else _RESERVED)

    def ended(self, seconds: float) -> None:
        """Record how long a read took."""
        self._times.append(seconds)
        self._count += 1
        self._saved = min(_MOST_SAVED, self._saved + 1 / _A_TRIAL)
        if self._is_local or self._count < _LEAST_READS:
            return
        if self._count % _EVERY == 0:
            self.threshold_s = max(_LEAST_S, sorted(self._times)[int(_SLOWEST * len(self._times))])

    def asked_again(self) -> None:
        """Take a repeat out of the budget."""
        self._saved -= 1
