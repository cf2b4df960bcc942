"""Measure how evenly an order distributes labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]

BATCH_SIZES: Final = (256, 1024, 4096)
# Counts of labels by batch in memory at one time; 128 MiB.
_MAX_COUNTS: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Evenness:
    """The evenness of an order.

    Attributes:
        variances: The variance of a label's count per batch relative to a uniform permutation, by
            `BATCH_SIZES`; NaN if the epoch has no such batch.
        labels: The mean number of distinct labels in a batch of 1,024.
        absence: The mean over labels of the longest absence, in percent of the epoch.
        longest: The longest absence of any label, in percent of the epoch.
    """

    variances: tuple[float, ...]
    labels: float
    absence: float
    longest: float


def measure(epoch_labels: Labels) -> Evenness:
    """Measure one epoch.

    Args:
        epoch_labels: ``(samples,) int64``, the label at each position; labels count from 0.
    """
    count, labels = len(epoch_labels), int(epoch_labels.max()) + 1
    shares = np.bincount(epoch_labels, minlength=labels) / count
    variances, distinct = [], float("nan")
    for size in BATCH_SIZES:
        variance, found = _batches(epoch_labels, shares, size)
        variances.append(variance)
        if size == BATCH_SIZES[1]:
            distinct = found
    longest = _absences(epoch_labels, labels) * 100 / count
    return Evenness(tuple(variances), distinct, float(longest.mean()), float(longest.max()))


def _batches(epoch_labels: Labels, shares: NDArray[np.float64], size: int) -> tuple[float, float]:
    """Return the relative variance of counts, and the mean number of distinct labels per batch."""
    labels, count = len(shares), len(epoch_labels) // size
    expected = size * float((shares * (1 - shares)).sum())
    if not count or not expected:
        return float("nan"), float("nan")
    squares, distinct = 0.0, 0
    together = max(_MAX_COUNTS // labels, 1)
    for first in range(0, count, together):
        rows = epoch_labels[first * size : min(first + together, count) * size].reshape(-1, size)
        places = np.arange(len(rows))[:, None] * labels
        counts = np.bincount((rows + places).ravel(), minlength=len(rows) * labels)
        counts = counts.reshape(-1, labels)
        squares += float(((counts - size * shares) ** 2).sum())
        distinct += int((counts > 0).sum())
    return squares / count / expected, distinct / count


def _absences(epoch_labels: Labels, labels: int) -> Labels:
    """Return the longest run of positions without each label."""
    order = np.argsort(epoch_labels, kind="stable")
    bounds = np.searchsorted(epoch_labels[order], np.arange(labels + 1))
    longest = np.zeros(labels, np.int64)
    for label in range(labels):
        places = order[bounds[label] : bounds[label + 1]]
        longest[label] = np.diff(np.concatenate([[-1], places, [len(epoch_labels)]])).max() - 1
    return longest
