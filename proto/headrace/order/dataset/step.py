"""One step of an order as a value, for who works out its samples with loops of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step of a lane: which samples it has, and how they are permuted.

    The place p of the step has the slot that the permutation says. The slot belongs to the entry e
    that has it, as its j-th; with D, x and i of that entry the sample is at the offset
    x + j D + a of the lane's layout, where a is the member of the group x + j D that line dealt to
    slice i (``docs/order.md``).

    Attributes:
        start: Its first place in the lane.
        count: Its samples.
        key: Key of its permutation.
        second_key: The key's second half.
        is_small: Whether the permutation is made by sorting; else it is a network.
        deal_key: Key of the lines.
        deal_second_key: The key's second half.
        entries: ``(entries + 1, 4) int64``: first slot, first offset of the cohort, D and i; of the
            last row, `count`.
        low: The first offset of the lane's layout that it may have.
        high: The offset after the last.
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
