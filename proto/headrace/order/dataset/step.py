"""One step of an order as a value, for callers that work out its samples with their own loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of a lane: which samples it has, and how they are permuted.

    The permutation maps place p of the step to a slot. The slot is the j-th of one entry. With D, x
    and i of that entry, the sample is at offset x + j D + a of the lane's layout, where a is the
    member of the group x + j D that its line deals to slice i (``docs/order.md``).

    Attributes:
        start: The first place of the step in the lane.
        count: Samples of the step.
        key: Key of the step's permutation.
        second_key: The key's second half.
        is_small: Whether the permutation is made by sorting, rather than by a network.
        deal_key: Key of the lines.
        deal_second_key: The key's second half.
        entries: ``(entries + 1, 4) int64``: first slot, first offset of the cohort, D and i; the
            last row starts with `count`.
        low: The lowest offset in the lane's layout that a sample of the step may have.
        high: The offset after the highest.
        first_ids: ``(runs,) int64``, the first sample id of each run from `low` to `high`, end to
            end; the first and the last may be parts of runs.
        lengths: ``(runs,) int64``, how many samples each has.
    """

    start: int
    count: int
    key: int
    second_key: int
    is_small: bool
    deal_key: int
    deal_second_key: int
    entries: _Array
    low: int
    high: int
    first_ids: _Array
    lengths: _Array
