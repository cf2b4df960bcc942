"""What an order is made from: the options of one dataset's order and its shard table."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError

# Chosen from the measurements in docs/shuffle-quality.md.
DEFAULT_WINDOW: Final = 1 << 20
DEFAULT_WINDOW_BYTES: Final = 1 << 30
ORDER_VERSION: Final = 1

_SEED_LIMIT: Final = 1 << 63
_COUNT_LIMIT: Final = 1 << 42


@dataclass(frozen=True, slots=True)
class OrderSpec:
    """Every option of one dataset's order; two equal specs give equal orders.

    Attributes:
        seed: Seed of all permutations, in [0, 2**63).
        shuffle: False gives storage order.
        window: Samples that are shuffled together, in [0, 2**42); 0 is the whole epoch.
        window_bytes: The same limit in raw bytes, in [0, 2**62); 0 is no limit.
        lanes: Parts of the shards that are shuffled apart, in [1, 2**20].
        unit: Samples that the lanes fill in turn, in [`lanes`, 2**42); it matters only with
            several lanes, and is best the global batch size then.
        version: Version of the order's specification.
    """

    seed: int = 0
    shuffle: bool = True
    window: int = DEFAULT_WINDOW
    window_bytes: int = DEFAULT_WINDOW_BYTES
    lanes: int = 1
    unit: int = 1
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        check_range("seed", self.seed, low=0, high=_SEED_LIMIT)
        check_range("window", self.window, low=0, high=_COUNT_LIMIT)
        check_range("window_bytes", self.window_bytes, low=0, high=1 << 62)
        check_range("lanes", self.lanes, low=1, high=(1 << 20) + 1)
        check_range("unit", self.unit, low=1, high=_COUNT_LIMIT)
        if self.unit < self.lanes:
            raise BadArgumentError(
                f"unit is {self.unit}, but {self.lanes} lanes need a unit of as many samples at"
                " least: take the global batch size",
                field="unit",
            )
        if self.version != ORDER_VERSION:
            raise BadArgumentError(
                f"order version is {self.version}, this headrace knows {ORDER_VERSION} alone",
                field="version",
            )


@dataclass(frozen=True, slots=True, eq=False)
class ShardTable:
    """What the order reads of a dataset.

    Attributes:
        sample_counts: (shards,) int64, samples of each shard in manifest order, each in
            [0, 2**42); zeros are fine. Not copied: leave it unchanged.
        raw_bytes: (shards,) int64, bytes of each shard's samples in memory, each in [0, 2**42).
            Not copied.
        range_reads: Whether a part of a shard can be read alone; if not, shards are never cut.
    """

    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    range_reads: bool = True

    def __post_init__(self) -> None:
        if self.sample_counts.ndim != 1 or self.sample_counts.shape != self.raw_bytes.shape:
            raise BadArgumentError(
                f"sample_counts has the shape {self.sample_counts.shape} and raw_bytes"
                f" {self.raw_bytes.shape}; both must be (shards,)",
                field="sample_counts",
            )
        _check_counts("sample_counts", self.sample_counts, total_limit=_COUNT_LIMIT)
        _check_counts("raw_bytes", self.raw_bytes, total_limit=1 << 62)

    @property
    def sample_count(self) -> int:
        """Samples of all shards."""
        return int(self.sample_counts.sum())


def spec_differences(wanted: OrderSpec, found: OrderSpec) -> tuple[str, ...]:
    """Name every option in which two specs differ, with both values.

    Args:
        wanted: The spec that was asked for.
        found: The spec that a token holds.

    Returns:
        One phrase an option, in the order of the fields; empty if the specs are equal.
    """
    return tuple(
        f"{field.name}: {getattr(wanted, field.name)} wanted,"
        f" the token has {getattr(found, field.name)}"
        for field in dataclasses.fields(OrderSpec)
        if getattr(wanted, field.name) != getattr(found, field.name)
    )


def check_range(field: str, value: int, *, low: int, high: int) -> None:
    """Refuse a value outside [low, high).

    Raises:
        BadArgumentError: With the field, the value and the range.
    """
    if not low <= value < high:
        raise BadArgumentError(f"{field} is {value}, must be in [{low}, {high})", field=field)


def _check_counts(field: str, counts: NDArray[np.int64], *, total_limit: int) -> None:
    if counts.dtype != np.int64:
        raise BadArgumentError(f"{field} is {counts.dtype}, must be int64", field=field)
    low, high = int(counts.min(initial=0)), int(counts.max(initial=0))
    if low < 0 or high >= _COUNT_LIMIT:
        shard = int(((counts < 0) | (counts >= _COUNT_LIMIT)).argmax())
        raise BadArgumentError(
            f"{field} of shard {shard} is {int(counts[shard])}, must be in [0, 2**42)",
            field=field,
        )
    # In floating point, because the sum of hostile counts could pass int64; seldom needed.
    if high * len(counts) >= total_limit and counts.sum(dtype=np.float64) >= total_limit:
        raise BadArgumentError(
            f"the sum of {field} is {counts.sum(dtype=np.float64):.0f}, must be below"
            f" {total_limit}",
            field=field,
        )
