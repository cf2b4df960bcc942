"""Arithmetic on arrays that hold several segments one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def starts_of(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of n segments starts, and where the last one ends: (n + 1,) int64."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def spread(lengths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the segment of each item, and its place there: two (items,) int64 arrays."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    starts = np.cumsum(lengths) - lengths
    return owners, np.arange(len(owners)) - starts[owners]


def sums_before(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of the items before each one in its segment: (items,) int64."""
    before = np.cumsum(values) - values
    filled = lengths > 0
    first = starts_of(lengths)[:-1][filled]
    before -= np.repeat(before[first], lengths[filled])
    return before


def totals(values: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sum of each segment: (segments,) int64."""
    sums = starts_of(values)[starts_of(lengths)]
    return np.diff(sums)


def by_value(values: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return each value and its places, both rising; places are (n,) int64."""
    if not len(values):
        return []
    low = int(values.min())
    if low == int(values.max()):
        return [(low, np.arange(len(values)))]
    order = np.argsort(values, kind="stable")
    (changes,) = np.nonzero(np.diff(values[order]))
    places = np.split(order, changes + 1)
    return [(int(values[members[0]]), members) for members in places]
