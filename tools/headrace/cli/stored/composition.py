"""Measure which labels come where in an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.labels import StoredLabels
from headrace.order import Order

_GROUPS: Final = 8
_POINTS: Final = 1 << 17
STEPS: Final = 96
_NAME: Final = 24


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Samples by their labels: the most common ones, then all others; or by eighths of the storage.

    Attributes:
        names: The names of the groups, at most nine.
        codes: The group of each sample by its id, ``(samples,) uint8``; None for eighths.
        count: The number of samples.
    """

    names: tuple[str, ...]
    codes: NDArray[np.uint8] | None
    count: int

    def of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the group of each id."""
        if self.codes is not None:
            return self.codes[ids].astype(np.int64)
        return ids // max(-(-self.count // _GROUPS), 1)


def groups_of(labels: StoredLabels | None, classes: Sequence[str] | None, count: int) -> Groups:
    """Group the samples of a dataset by their labels, or without labels by eighths of it.

    Args:
        labels: The label of each sample.
        classes: The names of labels that are class numbers.
        count: The number of samples.
    """
    if labels is None:
        size = max(-(-count // _GROUPS), 1)
        eighths = -(-count // size)
        return Groups(
            tuple(f"part {each + 1} of {eighths}" for each in range(eighths)), None, count
        )
    counts = np.bincount(labels.labels)
    common = np.argsort(-counts, kind="stable")[:_GROUPS]
    codes = np.full(len(counts), len(common), np.uint8)
    codes[common] = np.arange(len(common))
    names = [_named(labels.values[int(each)].as_py(), classes) for each in common]
    if len(counts) > len(common):
        names.append("others")
    return Groups(tuple(names), codes[labels.labels], count)


def shares_of(
    order: Order, groups: Groups, *, epoch: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of each group in each part of an epoch, and of a uniform shuffle.

    Returns:
        Two ``(steps, groups) float64``, whose rows add up to 1, with at most `STEPS` rows. Of long
        epochs some samples are counted, evenly spaced.
    """
    count = order.sample_count
    positions = np.unique(np.linspace(0, count - 1, min(_POINTS, count)).astype(np.int64))
    found = groups.of(order.at(epoch, positions))
    uniform = np.random.default_rng(epoch).permutation(found)
    return _shares(found, len(groups.names)), _shares(uniform, len(groups.names))


def _shares(found: NDArray[np.int64], group_count: int) -> NDArray[np.float64]:
    steps = min(STEPS, len(found))
    part = np.arange(len(found)) * steps // len(found)
    counts = np.bincount(part * group_count + found, minlength=steps * group_count)
    shares: NDArray[np.float64] = counts.reshape(steps, group_count) / np.bincount(part)[:, None]
    return shares


def _named(value: object, classes: Sequence[str] | None) -> str:
    if classes is not None and isinstance(value, int) and 0 <= value < len(classes):
        return classes[value][:_NAME]
    return "null" if value is None else str(value)[:_NAME] or "empty"
