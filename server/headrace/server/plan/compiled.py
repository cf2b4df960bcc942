"""Compute what orders and datasets compute, with compiled loops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.loader import LOOPS
from headrace.storage import Search, Starts, search_starts

# If more spans start in a bucket, a scan takes longer than a binary search.
_MAX_STEPS = 16

# Blocks within this many times the samples are counted, not sorted (6 us and 50 us for 4,096).
_CLOSE = 8


def walk(
    tables: NDArray[np.uint16], width: int, count: int, places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Compute the same as `headrace.order.walk_tables`."""
    out = np.empty(places.size, np.int64)
    LOOPS.walk(tables, width, count, places, out)
    return out


def search(
    starts: Starts, ordinals: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Compute the same as `headrace.storage.search_starts`."""
    if starts.buckets.dtype != np.uint16 or starts.steps > _MAX_STEPS:
        return search_starts(starts, ordinals)
    spans, offsets = np.empty(ordinals.size, np.int64), np.empty(ordinals.size, np.int64)
    LOOPS.find_spans(
        starts.values,
        starts.buckets,
        starts.shift,
        np.ascontiguousarray(ordinals),
        spans,
        offsets,
    )
    return spans, offsets


class Locator(Protocol):
    """The parts of a dataset that a finder needs."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the dataset's version."""

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = ...
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample and its place in that block."""


def distinct_each(blocks: NDArray[np.int64], ends: Sequence[int]) -> list[NDArray[np.int64]]:
    """Return the distinct blocks of each batch, ascending.

    Args:
        blocks: ``(samples,) int64``: of all batches, one after the other.
        ends: The end of each batch.
    """
    found, found_ends = np.empty_like(blocks), np.empty(len(ends), np.int64)
    most = _CLOSE * blocks.size
    if LOOPS.distinct(blocks, np.array(ends, np.int64), most, found, found_ends):
        edges = [0, *found_ends.tolist()]
        return [found[start:end] for start, end in itertools.pairwise(edges)]
    # They are far apart.
    return [np.unique(blocks[start:end]) for start, end in itertools.pairwise([0, *ends])]
