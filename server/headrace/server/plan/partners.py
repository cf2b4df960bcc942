"""Find the samples with which a rank's images are mixed: the next sample of each.

The next sample of a global batch's last one is its first, so the result depends neither on the
world size nor on how samples are dealt. A rank with consecutive samples needs one more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.order import RankBatch


class Partners(NamedTuple):
    """The samples with which those of a rank's batch are mixed.

    Attributes:
        positions: ``(others,) int64``, ascending: the positions of samples that are read only for
            mixing. They come after the batch's own.
        rows: ``(samples,) int64``: which row is the next sample of each of the batch's own.
    """

    positions: NDArray[np.int64]
    rows: NDArray[np.int64]


def partners_of(part: RankBatch, positions: NDArray[np.int64]) -> Partners:
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
    return Partners(others, rising[np.searchsorted(rows[rising], nexts)])


def positions_of(part: RankBatch) -> NDArray[np.int64]:
    """Return the positions of a batch that is dealt in order: its own, then its pads."""
    return np.concatenate(
        [np.arange(part.start, part.stop), np.array(part.pad_positions, np.int64)]
    )
