"""Parts: the pieces of shards that are permuted over the whole epoch.

A part is a shard that holds samples, or a piece of a shard that is larger than a window, so that
even a dataset of a single shard mixes distant places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._segments import cut_evenly, starts_of, sums_before, totals
from headrace.order._shape import Shape
from headrace.order._spec import OrderSpec, ShardTable

# Costs are counted in this fraction of a window: fixed point, so that they add up exactly.
WINDOW_COST: Final = 1 << 20
# Cutting adds at most this many parts to a dataset, whatever the window: it bounds memory.
_PART_LIMIT: Final = 1 << 18
_BAND_WINDOWS: Final = 4
# The cost of all samples must leave room in int64 for products with small numbers.
_TOTAL_WINDOW_LIMIT: Final = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class PartTable:
    """The parts of one or more datasets in storage order; the same in every epoch.

    Attributes:
        first_ids: (parts,) int64, sample id in its dataset of each part's first sample.
        sample_counts: (parts,) int64, >= 1.
        raw_bytes: (parts,) int64, bytes in memory, spread evenly over the pieces of a shard.
        starts: (datasets + 1,) int64, where each dataset's parts start.
        band_parts: (datasets,) int64, parts of one band, or up to twice as many.
        whole: (datasets,) bool, whether parts are never cut.
    """

    first_ids: NDArray[np.int64]
    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    starts: NDArray[np.int64]
    band_parts: NDArray[np.int64]
    whole: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    first_ids: NDArray[np.int64]
    samples: NDArray[np.int64]
    raw: NDArray[np.int64]
    lengths: NDArray[np.int64]


def make_parts(spec: OrderSpec, tables: Sequence[ShardTable], shape: Shape) -> PartTable:
    """Cut the shards of one or more datasets into parts.

    Raises:
        BadArgumentError: If the window is too small for a dataset of this size.
    """
    pieces = _stored_shards(tables)
    whole = np.array([not table.range_reads for table in tables], np.bool_)
    band_parts = np.full(len(tables), shape.band_parts, np.int64)
    if spec.shuffle and spec.window:
        costs = window_costs(spec, pieces.samples, pieces.raw)
        _check_costs(spec, costs)
        cost_totals = totals(costs, pieces.lengths)
        limits = np.maximum(WINDOW_COST, -(-cost_totals // _PART_LIMIT))
        limits[whole] = np.iinfo(np.int64).max
        counts = np.minimum(-(-costs // np.repeat(limits, pieces.lengths)), pieces.samples)
        pieces = _cut(pieces, counts)
        windows = _BAND_WINDOWS * WINDOW_COST * pieces.lengths
        np.maximum(band_parts, -(-windows // np.maximum(cost_totals, 1)), out=band_parts)
    return PartTable(
        first_ids=pieces.first_ids,
        sample_counts=pieces.samples,
        raw_bytes=pieces.raw,
        starts=starts_of(pieces.lengths),
        band_parts=band_parts,
        whole=whole,
    )


def window_costs(
    spec: OrderSpec, samples: NDArray[np.int64], raw: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how much of a window each piece of storage fills, by samples or bytes.

    Args:
        spec: A spec with a window.
        samples: (n,) int64, samples of each piece.
        raw: (n,) int64, bytes of each piece.

    Returns:
        (n,) int64 in units of 1 / `WINDOW_COST` of a window, rounded up.
    """
    costs = _cost(samples, spec.window)
    if spec.window_bytes:
        np.maximum(costs, _cost(raw, spec.window_bytes), out=costs)
    return costs


def _cost(amounts: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    costs: NDArray[np.int64] = -(-(amounts * WINDOW_COST) // limit)
    return costs


def _check_costs(spec: OrderSpec, costs: NDArray[np.int64]) -> None:
    if costs.sum(dtype=np.float64) >= _TOTAL_WINDOW_LIMIT * WINDOW_COST:
        raise BadArgumentError(
            f"windows of {spec.window} samples and {spec.window_bytes} bytes cut this dataset into"
            " 2**40 windows or more: take a larger window",
            field="window",
        )


def _stored_shards(tables: Sequence[ShardTable]) -> _Pieces:
    lengths = np.array([len(table.sample_counts) for table in tables])
    if len(tables) == 1:
        samples, raw = tables[0].sample_counts, tables[0].raw_bytes
    else:
        samples = np.concatenate([table.sample_counts for table in tables])
        raw = np.concatenate([table.raw_bytes for table in tables])
    first_ids = sums_before(samples, lengths)
    stored = samples > 0
    if stored.all():
        return _Pieces(first_ids, samples, raw, lengths)
    lengths = totals(stored.astype(np.int64), lengths)
    return _Pieces(first_ids[stored], samples[stored], raw[stored], lengths)


def _cut(pieces: _Pieces, counts: NDArray[np.int64]) -> _Pieces:
    if (counts <= 1).all():
        return pieces
    owners, begin, samples = cut_evenly(pieces.samples, counts)
    _, _, raw = cut_evenly(pieces.raw, counts)
    lengths = totals(counts, pieces.lengths)
    return _Pieces(pieces.first_ids[owners] + begin, samples, raw, lengths)
