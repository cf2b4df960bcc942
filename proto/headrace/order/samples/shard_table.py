"""The shard table: all that an order knows of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError

COUNT_LIMIT: Final = 1 << 42


@dataclass(frozen=True, slots=True, eq=False)
class ShardTable:
    """The shards of a dataset, as an order sees them. Arrays are not copied; do not change them.

    Attributes:
        sample_counts: (shards,) int64, samples of each shard in manifest order, each in
            [0, 2**42).
        raw_bytes: (shards,) int64, bytes of each shard's samples in memory, each in [0, 2**42).
        block_samples: (shards,) int64, samples of every block of a shard except for its last; 0 if
            its blocks differ. None if those of all shards do. A shard that can only be read as a
            whole is one block.
    """

    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    block_samples: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.sample_counts.ndim != 1 or self.sample_counts.shape != self.raw_bytes.shape:
            raise BadArgumentError(
                f"sample_counts has shape {self.sample_counts.shape} and raw_bytes "
                f"{self.raw_bytes.shape}; both must be (shards,)",
                field="sample_counts",
            )
        _check_counts("sample_counts", self.sample_counts, total_limit=COUNT_LIMIT)
        _check_counts("raw_bytes", self.raw_bytes, total_limit=1 << 62)
        blocks = self.block_samples
        if blocks is None:
            return
        if blocks.shape != self.sample_counts.shape or blocks.dtype != np.int64:
            raise BadArgumentError(
                f"block_samples is {blocks.dtype} with shape {blocks.shape}, must be int64 with "
                f"shape {self.sample_counts.shape}, one number per shard",
                field="block_samples",
            )
        _check_each("block_samples", blocks)

    @property
    def sample_count(self) -> int:
        """Samples of all shards."""
        return int(self.sample_counts.sum())


class Stretches(Protocol):
    """What `headrace.storage.OpenDataset.stretches` returns, whatever the dataset's layout."""

    @property
    def sample_counts(self) -> NDArray[np.int64]:
        """``(stretches,) int64``."""

    @property
    def raw_bytes(self) -> NDArray[np.int64]:
        """``(stretches,) int64``."""

    @property
    def block_samples(self) -> NDArray[np.int64]:
        """``(stretches,) int64``; all samples of a stretch that can only be read as a whole."""


def table_of(stored: Stretches) -> ShardTable:
    """Return the shard table of a dataset's stretches; nothing is copied.

    Raises:
        BadArgumentError: A count is outside its range.
    """
    return ShardTable(stored.sample_counts, stored.raw_bytes, stored.block_samples)


def _check_counts(field: str, counts: NDArray[np.int64], *, total_limit: int) -> None:
    if counts.dtype != np.int64:
        raise BadArgumentError(f"{field} is {counts.dtype}, must be int64", field=field)
    _check_each(field, counts)
    # In floating point, because a sum of malicious counts could overflow int64; seldom needed.
    most = int(counts.max(initial=0)) * len(counts)
    if most >= total_limit and counts.sum(dtype=np.float64) >= total_limit:
        raise BadArgumentError(
            f"the sum of {field} is {counts.sum(dtype=np.float64):.0f}, must be below"
            f" {total_limit}",
            field=field,
        )


def _check_each(field: str, counts: NDArray[np.int64]) -> None:
    if int(counts.min(initial=0)) < 0 or int(counts.max(initial=0)) >= COUNT_LIMIT:
        shard = int(((counts < 0) | (counts >= COUNT_LIMIT)).argmax())
        raise BadArgumentError(
            f"{field} of shard {shard} is {int(counts[shard])}, must be in [0, 2**42)",
            field=field,
        )
