"""Find reads that take so long that repeating them is likely to be faster.

A store takes several times as long as usual for one read in a hundred, and a connection may stall
for seconds. A batch waits for all of its blocks, so the slowest read is what a training loop feels.

Contract:

1. A read is slow when it has taken longer than `_SLOWEST` of the reads before it, and longer than
   `_LEAST_S`. None is slow until `_LEAST_READS` have ended, and no read of a local disk ever is:
   there the machine itself is slow.
2. A slow read is repeated once, never twice, and at most one read in `_A_TRIAL` is: finished reads
   pay for repeated ones, and no more than `_MOST_SAVED` repeats are saved up.

If the code differs, the code is wrong.

Source: hedged requests of Dean and Barroso, "The Tail at Scale", Communications of the ACM, 2013.
"""

from __future__ import annotations

from collections import deque

import numpy as np

_SLOWEST = 0.97
_LEAST_S = 0.1  # arbitrary: some times the usual latency of a store in the same region
_LEAST_READS = 32
_KEPT_READS = 512
_EVERY = 16
_A_TRIAL = 20
_MOST_SAVED = 8


class SlowReads:
    """Tells slow reads of one store from others. Not safe for several threads.

    Args:
        is_local: Whether the store is a disk of this machine.

    Attributes:
        threshold_s: How long a read may take until it is slow; infinite while that is not known.
    """

    def __init__(self, *, is_local: bool) -> None:
        self._is_local = is_local
        self.threshold_s = float("inf")
        self._times: deque[float] = deque(maxlen=_KEPT_READS)
        self._count = 0
        self._saved = 0.0

    @property
    def can_ask_again(self) -> bool:
        """Whether the budget has one more trial."""
        return self._saved >= 1

    def ended(self, seconds: float) -> None:
        """Note what a read took."""
        self._times.append(seconds)
        self._count += 1
        self._saved = min(_MOST_SAVED, self._saved + 1 / _A_TRIAL)
        if self._is_local or self._count < _LEAST_READS:
            return
        if self._count % _EVERY == 0:
            self.threshold_s = max(_LEAST_S, float(np.quantile(self._times, _SLOWEST)))

    def asked_again(self) -> None:
        """Take a trial out of the budget."""
        self._saved -= 1
