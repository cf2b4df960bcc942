"""Measure how evenly an order spreads the labels of samples that are stored sorted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]

BATCH_SIZES: Final = (256, 1024, 4096)
# Counts of labels by batch that are held at one time; 128 MiB.
_MOST_COUNTS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Evenness:
    """The evenness of an order for data that is stored sorted by label.

    Attributes:
        variances: Variance of a label's count in a batch over a uniform permutation's, for batches
            of `BATCH_SIZES`; NaN where the epoch has no such batch.
        labels: Distinct labels in a batch of 1,024.
        absence: The longest absence of a label, mean over labels, in percent of the epoch.
        longest: The longest absence of any label, in percent of the epoch.
    """

    variances: tuple[float, ...]
    labels: float
    absence: float
    longest: float


def measure(epoch_labels: Labels) -> Evenness:
    """Measure one epoch.

    Args:
        epoch_labels: ``(samples,) int64``, the label at each position, from 0 on without gaps.
    """
    count, labels = len(epoch_labels), int(epoch_labels.max()) + 1
    shares = np.bincount(epoch_labels, minlength=labels) / count
    variances, distinct = [], float("nan")
    for size in BATCH_SIZES:
        variance, own = _batches(epoch_labels, shares, size)
        variances.append(variance)
        if size == BATCH_SIZES[1]:
            distinct = own
    longest = _absences(epoch_labels, labels) * 100 / count
    return Evenness(tuple(variances), distinct, float(longest.mean()), float(longest.max()))


def _batches(epoch_labels: Labels, shares: NDArray[np.float64], size: int) -> tuple[float, float]:
    """Return the variance of counts over a uniform order's, and distinct labels in a batch."""
    labels, count = len(shares), len(epoch_labels) // size
    expected = size * float((shares * (1 - shares)).sum())
    if not count or not expected:
        return float("nan"), float("nan")
    squares, distinct = 0.0, 0
    together = max(_MOST_COUNTS // labels, 1)
    for first in range(0, count, together):
        rows = epoch_labels[first * size : min(first + together, count) * size].reshape(-1, size)
        places = np.arange(len(rows))[:, None] * labels
        counts = np.bincount((rows + places).ravel(), minlength=len(rows) * labels)
        counts = counts.reshape(-1, labels)
        squares += float(((counts - size * shares) ** 2).sum())
        distinct += int((counts > 0).sum())
    return squares / count / expected, distinct / count


def _absences(epoch_labels: Labels, labels: int) -> Labels:
    """Return for each label the longest stretch of positions without it."""
    order = np.argsort(epoch_labels, kind="stable")
    bounds = np.searchsorted(epoch_labels[order], np.arange(labels + 1))
    longest = np.zeros(labels, np.int64)
    for label in range(labels):
        places = order[bounds[label] : bounds[label + 1]]
        longest[label] = np.diff(np.concatenate([[-1], places, [len(epoch_labels)]])).max() - 1
    return longest
