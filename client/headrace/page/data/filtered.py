"""Find all samples of a dataset that a filter keeps, or refuse within a few seconds.

Contract:

1. The whole dataset is checked, since a partial result has another digest. Datasets that take
   longer than `LOOK_S`, have more than `MOST_SAMPLES`, or larger blocks than a page reads, are
   refused.
2. `_AT_A_TIME` filters run at once, so that views without filters have threads left; others wait
   for `_WAIT_S`, and are then told to try again.
3. Results are kept for later views, up to `_KEPT_BYTES`.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import numpy as np

from headrace.errors import BadArgumentError, ServerBusyError
from headrace.order import Kept as KeptSamples
from headrace.page.data.kept import Kept
from headrace.page.data.library import MOST_BLOCK_BYTES
from headrace.storage import OpenDataset, kept_bits, make_filter

LOOK_S: Final = 12.0
MOST_SAMPLES: Final = 1 << 26
MOST_LETTERS: Final = 4096
_AT_A_TIME: Final = 2
_WAIT_S: Final = 4.0
_KEPT: Final = 64
_KEPT_BYTES: Final = 256 << 20


class Filtered:
    """The results of requested filters; safe for several threads.

    Args:
        now: Returns seconds of a monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._places = threading.BoundedSemaphore(_AT_A_TIME)
        self._found: Kept[tuple[str, str], KeptSamples] = Kept(
            _KEPT, most_bytes=_KEPT_BYTES, size=lambda kept: kept.nbytes
        )

    def of(self, dataset: OpenDataset, where: str) -> KeptSamples:
        """Return which samples a filter keeps.

        Raises:
            BadArgumentError: It cannot be parsed, or takes longer than a page waits.
            ServerBusyError: Too many other filters are running.
            HeadraceError: A block cannot be read.
        """
        return self._found.of((dataset.fingerprint, where), lambda: self._find(dataset, where))

    def _find(self, dataset: OpenDataset, where: str) -> KeptSamples:
        if len(where) > MOST_LETTERS:
            raise BadArgumentError(
                f"the filter has more than {MOST_LETTERS} characters", field="where"
            )
        filtered = make_filter(where, dataset.schema)
        count = dataset.sample_count
        largest = dataset.block_raw_bytes(np.arange(dataset.block_count)).max(initial=0)
        if count > MOST_SAMPLES or largest > MOST_BLOCK_BYTES:
            raise _too_much(f"the dataset has {count} samples, in blocks of up to {largest} bytes")
        if not self._places.acquire(timeout=_WAIT_S):
            raise ServerBusyError("the page is busy with other filters; load this view again")
        try:
            deadline = self._now() + LOOK_S

            def go_on(done: int) -> None:
                if self._now() > deadline and done < count:
                    raise _too_much(f"{done} of {count} samples were filtered in {LOOK_S:.0f} s")

            return KeptSamples(kept_bits(dataset, filtered, progress=go_on), count)
        finally:
            self._places.release()


def _too_much(found: str) -> BadArgumentError:
    return BadArgumentError(
        f"{found}, which is more than a page filters; use `headrace order URL --where EXPR --step "
        "STEP`, which has no time limit",
        field="where",
    )
