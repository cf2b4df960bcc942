"""Find the samples with which a rank's images are mixed: the next sample of each.

The next sample of a global batch's last one is its first, so the result depends neither on the
world size nor on how samples are dealt. A rank with consecutive samples needs one more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import RankBatch
from headrace.server.batch.stage import Companions


def partners_of(part: RankBatch, positions: NDArray[np.int64]) -> Companions:
    """Return the next sample of each sample.

    Args:
        part: The rank's part of a global batch.
        positions: ``(samples,) int64``: of its samples, within the global batch; pads may repeat
            some.
    """
    nexts = part.position + (positions - part.position + 1) % max(1, part.global_sample_count)
    others = np.setdiff1d(nexts, positions)
    rows = np.concatenate([positions, others])
    rising = np.argsort(rows, kind="stable")
    return Companions(others, rising[np.searchsorted(rows[rising], nexts)])
