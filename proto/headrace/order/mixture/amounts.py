"""How many samples of each dataset an epoch draws and shuffles, and how long an epoch is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.mixture.mixture import Batching, MixtureSpec
from headrace.order.mixture.schedule import Schedule
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.spec import OrderSpec

_Array = NDArray[np.int64]

_SAMPLE_LIMIT: Final = 1 << 42
# Weights of a schedule are compared as integers of this many bits.
_PART_BITS: Final = 20


def epoch_draws(spec: MixtureSpec, sample_counts: Sequence[int]) -> _Array:
    """Return how often an epoch draws from each dataset: (datasets,) int64; zeros with weights.

    Args:
        spec: The mixture.
        sample_counts: Samples of each dataset.

    Raises:
        BadArgumentError: There would be too many.
    """
    if spec.weights() is not None:
        return np.zeros(len(sample_counts), np.int64)
    draws = [
        dataset.draws(count) for dataset, count in zip(spec.datasets, sample_counts, strict=True)
    ]
    check_total("draws", draws)
    if spec.batching is Batching.PER_DATASET:
        draws = [count - count % spec.order.unit for count in draws]
    return np.array(draws, np.int64)


def epoch_positions(spec: MixtureSpec, sample_counts: Sequence[int]) -> int:
    """Return how many positions an epoch has.

    Args:
        spec: The mixture.
        sample_counts: Samples of each dataset.

    Raises:
        BadArgumentError: There would be too many.
    """
    positions = int(epoch_draws(spec, sample_counts).sum())
    if spec.weights() is not None:
        positions = spec.epoch_size or sum(sample_counts)
    if spec.batching is Batching.PER_DATASET:
        positions -= positions % spec.order.unit
    return positions


def drawn_datasets(spec: MixtureSpec, draws: _Array) -> NDArray[np.bool_]:
    """Return which datasets are drawn from at all: (datasets,) bool."""
    schedule = spec.weights()
    return draws > 0 if schedule is None else np.any(schedule.weights != 0, axis=0)


def memories(
    spec: OrderSpec, tables: Sequence[ShardTable], draws: _Array, schedule: Schedule | None
) -> _Array:
    """Return how many samples of each dataset are shuffled together: (datasets,) int64, >= 1.

    The limits of the spec hold for all datasets together; each dataset gets its share of the draws.

    Args:
        spec: The options.
        tables: The datasets.
        draws: (datasets,) int64, draws of an epoch; unused with a schedule.
        schedule: Weights over the run, or None; the greatest weight of each dataset counts.
    """
    weights = draws.tolist() if schedule is None else _greatest(schedule).tolist()
    counts = [table.sample_count for table in tables]
    total = sum(weights)
    raw = sum(
        weight * int(table.raw_bytes.sum()) // max(count, 1)
        for weight, table, count in zip(weights, tables, counts, strict=True)
    )
    limits = [spec.shuffle_bytes * total // max(raw, 1)] if spec.shuffle_bytes else []
    limits += [spec.shuffle_samples] if spec.shuffle_samples else []
    if not limits:
        return np.maximum(np.array(counts, np.int64), 1)
    return np.array(
        [
            max(min(min(limits) * weight // max(total, 1), count), 1)
            for weight, count in zip(weights, counts, strict=True)
        ],
        np.int64,
    )


def draw_shares(draws: _Array, schedule: Schedule | None) -> NDArray[np.float64]:
    """Return each dataset's share of the draws: (datasets,) float64 with the sum 1, or zeros.

    Args:
        draws: (datasets,) int64, draws of an epoch; unused with a schedule.
        schedule: Weights over the run, or None; the greatest weight of each dataset counts.
    """
    weights = (draws if schedule is None else _greatest(schedule)).astype(np.float64)
    shares: NDArray[np.float64] = weights / max(1.0, weights.sum())
    return shares


def check_total(things: str, counts: Sequence[int]) -> None:
    """Refuse datasets with too many samples or draws in all.

    Raises:
        BadArgumentError: There are too many.
    """
    if sum(counts) >= _SAMPLE_LIMIT:
        raise BadArgumentError(
            f"the datasets have {sum(counts)} {things} in total, must be fewer than 2**42",
            field="datasets",
        )


def _greatest(schedule: Schedule) -> _Array:
    # Return the greatest share of the weights that each dataset has in any piece.
    parts = np.zeros(schedule.weights.shape[1], np.int64)
    for piece in range(len(schedule.starts)):
        sums = schedule.shares(piece)
        weights = np.diff(sums)
        own = (weights << _PART_BITS) // sums[-1]
        np.maximum(parts, np.maximum(own, weights > 0), out=parts)
    return parts
