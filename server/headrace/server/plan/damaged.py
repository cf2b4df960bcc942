"""Remember damaged samples for all streams of an order."""

from __future__ import annotations

import threading
from collections.abc import Iterable

# A few megabytes; with more damaged samples, some are found again in each epoch.
_MOST = 1 << 16


class DamagedSamples:
    """Remember samples by their use; safe for several threads.

    This only saves work: damage of a forgotten sample is found again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[bytes, frozenset[int]] = {}

    def known(self, use: bytes) -> frozenset[int]:
        """Return the samples that are damaged for a use."""
        return self._known.get(use, frozenset())

    def add(self, use: bytes, sample_ids: Iterable[int]) -> None:
        """Remember samples, if there is room."""
        with self._lock:
            known = self.known(use).union(sample_ids)
            others = sum(len(each) for key, each in self._known.items() if key != use)
            if others + len(known) <= _MOST:
                self._known[use] = known
