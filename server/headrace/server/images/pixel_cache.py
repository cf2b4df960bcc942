"""Decoded images, kept for whoever wants the same file again: other ranks, jobs and epochs.

Contract:

1. What is kept is found by the bytes of the file alone, so pixels are those that decoding gives.
2. All that is kept has `budget_bytes` at most. An image that somebody works on may have been
   dropped meanwhile; it lives until then.
3. An image is dropped only where it has not been asked for during `_PATIENCE` times as many
   look-ups as there are images: who reads more than fits, epoch after epoch, finds the same part of
   it each time, where keeping what was read last would find nothing.
4. Safe for several threads. What was found is not to be written to.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Key: TypeAlias = tuple[bytes, int]
"""The digest of a file, and the channels that it is decoded to."""

_PATIENCE = 8
# What an image takes beside its pixels: the array, the key and its place (measured: 420 bytes).
_ENTRY_BYTES = 512
# An image with more of the budget would drop many others (arbitrary).
_GREATEST_SHARE = 8
_DIGEST_BYTES = 16


class PixelObserver(Protocol):
    """What a cache reports."""

    def looked_up(self, *, is_hit: bool) -> None:
        """Count an image that was kept, or not."""


class PixelCache:
    """Keeps decoded images; the contract is above.

    Args:
        budget_bytes: What they may have; 0 keeps nothing.
        observer: Is told what happens; None for nobody.

    Attributes:
        used_bytes: What they have.
    """

    def __init__(self, budget_bytes: int, *, observer: PixelObserver | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._observer = observer
        self._lock = threading.Lock()
        self._looked = 0
        # Those that were asked for last come last, each with the number of that look-up.
        self._kept: OrderedDict[Key, tuple[NDArray[np.uint8], int]] = OrderedDict()

    def key(self, content: memoryview, channels: int) -> Key:
        """Return what names a file's pixels: nobody can make another file of the same name."""
        return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest(), channels

    def get(self, key: Key) -> NDArray[np.uint8] | None:
        """Return the pixels of a file, if they are kept."""
        with self._lock:
            self._looked += 1
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found[0], self._looked
        if self._observer is not None:
            self._observer.looked_up(is_hit=found is not None)
        return None if found is None else found[0]

    def put(self, key: Key, pixels: NDArray[np.uint8]) -> None:
        """Keep a copy of the pixels of a file, if there is room or some can be made."""
        size = pixels.nbytes + _ENTRY_BYTES
        with self._lock:
            if key in self._kept or not self._make_room(size):
                return
            self.used_bytes += size
        # Others may look up meanwhile; the room is taken.
        copy = pixels.copy()
        copy.flags.writeable = False
        with self._lock:
            if key in self._kept:
                self.used_bytes -= size
            else:
                self._kept[key] = copy, self._looked

    def _make_room(self, size: int) -> bool:
        if size > self.budget_bytes // _GREATEST_SHARE:
            return False
        while self.used_bytes + size > self.budget_bytes:
            if not self._kept:
                return False
            oldest, (pixels, looked) = next(iter(self._kept.items()))
            if self._looked - looked <= _PATIENCE * len(self._kept):
                return False
            del self._kept[oldest]
            self.used_bytes -= pixels.nbytes + _ENTRY_BYTES
        return True
