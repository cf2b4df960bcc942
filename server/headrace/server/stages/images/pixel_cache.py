"""Cache decoded images for other ranks, jobs and epochs that need the same file.

Contract:

1. Entries are found by the bytes of the file alone, so pixels are those that decoding gives.
2. All entries together have at most `budget_bytes`. An image in use may be dropped meanwhile; its
   memory stays valid until the user releases it.
3. An image is dropped only if it was not requested during `_PATIENCE` times as many look-ups as
   there are images. A job that reads more than fits then finds the same part of it in each epoch;
   keeping the latest images instead would find nothing.
4. Safe for several threads. Callers must not write to the pixels found.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge

Key: TypeAlias = tuple[bytes, int, int]
"""The digest of a file, the number of channels that it is decoded to, and its reduction."""

_PATIENCE = 8
# Memory per image besides its pixels: the array, the key and the entry (measured: 420 bytes).
_ENTRY_BYTES = 512
# An image with a larger share of the budget would displace many others (arbitrary).
_GREATEST_SHARE = 8
_DIGEST_BYTES = 16


class PixelMetrics:
    """Metrics of the cache.

    Args:
        registry: Where they are found.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pixel_bytes = Gauge(
            "headrace_decoded_cache_bytes",
            "Bytes of decoded images that are kept. Full is normal; 0 without decoded_cache_bytes.",
            registry=registry,
        )
        looked_up = Counter(
            "headrace_decoded_cache_lookups_total",
            "Decoded images that were needed, by whether they were cached: hit or miss. Few hits "
            "after the first epoch: decoded_cache_bytes is small compared with the images.",
            ["found"],
            registry=registry,
        )
        self._lookups = (looked_up.labels("miss"), looked_up.labels("hit"))

    def watch(self, cache: PixelCache) -> None:
        """Show the size of a cache."""
        self._pixel_bytes.set_function(lambda: cache.used_bytes)

    def looked_up(self, *, is_hit: bool) -> None:
        """Count a look-up that found the image, or did not."""
        self._lookups[is_hit].inc()


class PixelCache:
    """Keep decoded images, according to the contract above.

    Args:
        budget_bytes: The most memory that images may take; 0 keeps nothing.
        observer: Receives reports of look-ups; None for no observer.

    Attributes:
        used_bytes: The memory that images take.
    """

    def __init__(self, budget_bytes: int, *, observer: PixelMetrics | None = None) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._observer = observer
        self._lock = threading.Lock()
        self._looked = 0
        # In order of their latest look-up, each with its number.
        self._kept: OrderedDict[Key, tuple[NDArray[np.uint8], int]] = OrderedDict()

    def key(self, content: memoryview, channels: int, reduction: int = 1) -> Key:
        """Return the key of a file's pixels, a digest for which nobody can make another file."""
        return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest(), channels, reduction

    def get(self, key: Key) -> NDArray[np.uint8] | None:
        """Return the pixels of a file, if they are in the cache."""
        with self._lock:
            self._looked += 1
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found[0], self._looked
        if self._observer is not None:
            self._observer.looked_up(is_hit=found is not None)
        return None if found is None else found[0]

    def put(self, key: Key, pixels: NDArray[np.uint8]) -> None:
        """Keep a copy of the pixels of a file, if there is room or room can be made."""
        size = pixels.nbytes + _ENTRY_BYTES
        with self._lock:
            if key in self._kept or not self._make_room(size):
                return
            self.used_bytes += size
        # Other threads may look up meanwhile; the room is already reserved.
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
