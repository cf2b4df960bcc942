"""The lookups of a plan, compiled once the kernels are there: of the order, and of blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.order import walk_tables
from headrace.server.kernels.loader import KERNELS
from headrace.server.plan.find_samples import Locator
from headrace.storage import Dataset, Starts, search_starts

# Where more spans begin in a bucket, going through them takes longer than halving.
_MAX_STEPS = 16


def walk(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Do what `headrace.order.walk_tables` does."""
    kernels = KERNELS.module
    if kernels is None:
        return walk_tables(tables, width, count, places)
    out = np.empty(places.size, np.int64)
    kernels.walk(tables, width, count, places, out)
    return out


def search(
    starts: Starts, ordinals: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Do what `headrace.storage.search_starts` does."""
    kernels = KERNELS.module
    if kernels is None or starts.buckets.dtype != np.uint16 or starts.steps > _MAX_STEPS:
        return search_starts(starts, ordinals)
    spans, offsets = np.empty(ordinals.size, np.int64), np.empty(ordinals.size, np.int64)
    kernels.find_spans(
        starts.values,
        starts.buckets,
        starts.shift,
        np.ascontiguousarray(ordinals),
        spans,
        offsets,
    )
    return spans, offsets


class Located:
    """Finds samples as their dataset does, faster where the dataset lets its search be replaced.

    Args:
        dataset: Where they lie.
    """

    def __init__(self, dataset: Locator) -> None:
        self._dataset = dataset
        self.fingerprint = dataset.fingerprint

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""
        if isinstance(self._dataset, Dataset):
            return self._dataset.locate(sample_ids, search=search)
        return self._dataset.locate(sample_ids)
