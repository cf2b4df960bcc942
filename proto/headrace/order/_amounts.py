"""How much of each dataset an epoch of a mixture draws, and how long an epoch is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order._mixture import Batching, MixtureSpec

_SAMPLE_LIMIT: Final = 1 << 42


def epoch_draws(spec: MixtureSpec, sample_counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the draws of an epoch from each dataset: (datasets,) int64; zeros if weights rule.

    Args:
        spec: The mixture.
        sample_counts: Samples of each dataset.

    Raises:
        BadArgumentError: If they are too many.
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
        BadArgumentError: If they are too many.
    """
    positions = int(epoch_draws(spec, sample_counts).sum())
    if spec.weights() is not None:
        positions = spec.epoch_size or sum(sample_counts)
    if spec.batching is Batching.PER_DATASET:
        positions -= positions % spec.order.unit
    return positions


def check_total(things: str, counts: Sequence[int]) -> None:
    """Refuse datasets of too many samples or draws.

    Raises:
        BadArgumentError: If they are.
    """
    if sum(counts) >= _SAMPLE_LIMIT:
        raise BadArgumentError(
            f"the datasets have {sum(counts)} {things} together, fewer than 2**42 are possible",
            field="datasets",
        )
