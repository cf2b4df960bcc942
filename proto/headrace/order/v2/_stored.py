"""The shard table of a stored dataset."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order._table import ShardTable


class Stored(Protocol):
    """What `headrace.storage.OpenDataset.stretches` returns, whatever the dataset's layout."""

    @property
    def sample_counts(self) -> NDArray[np.int64]:
        """``(stretches,) int64``."""

    @property
    def raw_bytes(self) -> NDArray[np.int64]:
        """``(stretches,) int64``."""

    @property
    def block_samples(self) -> NDArray[np.int64]:
        """``(stretches,) int64``; all samples of what can only be read whole."""


def table_of(stored: Stored) -> ShardTable:
    """Return the shard table of a dataset's stretches; nothing is copied.

    What can only be read whole has blocks of all its samples, so runs keep it whole, and
    ``range_reads`` is true for every layout.

    Raises:
        BadArgumentError: A count is outside its range.
    """
    return ShardTable(
        stored.sample_counts, stored.raw_bytes, range_reads=True, block_samples=stored.block_samples
    )
