"""Find all samples of a dataset that a filter keeps, within a few seconds.

Contract:

1. The whole dataset is filtered, since a partial result has another digest. A dataset is refused
   if filtering takes longer than `LIMIT_S`, if it has more than `MAX_SAMPLES`, or if its blocks are
   too large for a page.
2. At most `_MAX_CONCURRENT` filters run at a time, so that other views have threads left. Others
   wait for `_WAIT_S`, and are then refused.
3. Results are cached for later views, up to `_CACHE_BYTES`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from headrace.caches import LruCache
from headrace.errors import BadArgumentError, ServerBusyError
from headrace.order import Subset
from headrace.page.data.library import MAX_BLOCK_BYTES
from headrace.storage import OpenDataset, kept_bits, make_filter

LIMIT_S: Final = 12.0
MAX_SAMPLES: Final = 1 << 26
MAX_FILTER_CHARACTERS: Final = 4096
_MAX_CONCURRENT: Final = 2
_WAIT_S: Final = 4.0
_MAX_RESULTS: Final = 64
_CACHE_BYTES: Final = 256 << 20


class FilterResults:
    """The cached results of filters; safe for several threads.

    Args:
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._places = threading.BoundedSemaphore(_MAX_CONCURRENT)
        self._cache: LruCache[tuple[str, str], Subset] = LruCache(
            _MAX_RESULTS, max_bytes=_CACHE_BYTES, size=lambda kept: kept.nbytes
        )

    def get(self, dataset: OpenDataset, where: str) -> Subset:
        """Return the samples that a filter keeps.

        Raises:
            BadArgumentError: The filter cannot be parsed, or takes too long.
            ServerBusyError: Too many other filters are running.
            HeadraceError: A block cannot be read.
        """
        return self._cache.get((dataset.fingerprint, where), lambda: self._find(dataset, where))

    def _find(self, dataset: OpenDataset, where: str) -> Subset:
        if len(where) > MAX_FILTER_CHARACTERS:
            raise BadArgumentError(
                f"the filter has more than {MAX_FILTER_CHARACTERS} characters", field="where"
            )
        filtered = make_filter(where, dataset.schema)
        count = dataset.sample_count
        largest = dataset.block_raw_bytes(np.arange(dataset.block_count)).max(initial=0)
        if count > MAX_SAMPLES or largest > MAX_BLOCK_BYTES:
            raise _too_slow(f"the dataset has {count} samples, in blocks of up to {largest} bytes")
        if not self._places.acquire(timeout=_WAIT_S):
            raise ServerBusyError("the page is busy with other filters; load this view again")
        try:
            deadline = self._now() + LIMIT_S

            def check_time(done: int) -> None:
                if self._now() > deadline and done < count:
                    raise _too_slow(f"{done} of {count} samples were filtered in {LIMIT_S:.0f} s")

            return Subset(kept_bits(dataset, filtered, progress=check_time), count)
        finally:
            self._places.release()


def _too_slow(found: str) -> BadArgumentError:
    return BadArgumentError(
        f"{found}, which is too much for a page; use `headrace order URL --where EXPR --step "
        "STEP`, which has no time limit",
        field="where",
    )
