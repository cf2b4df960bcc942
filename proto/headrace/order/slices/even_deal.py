"""Deal the samples of a global batch to ranks so that costs are even.

The samples of the global batch stay the same, and so does the number that each rank gets.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.checks import check_range

_Array = NDArray[np.int64]
_Costs = NDArray[np.float64]

MAX_ACCUMULATED: Final = 256
"""Most global batches of a step: a batch can be dealt only after those before it in its step."""


@dataclass(frozen=True, slots=True)
class DealSpec:
    """How samples are dealt to ranks.

    Attributes:
        length_cost: Cost of each element of a sample, finite and >= 0.
        square_cost: Cost per squared number of elements of a sample; for a packed row, of each of
            its documents.
        speeds: The relative speed of each rank, > 0; empty if all are equal.
        accumulate: Global batches of a step, over which costs are balanced, in
            [1, `MAX_ACCUMULATED`].
        sizes: How many samples of a full global batch each rank gets, >= 1; empty if all get as
            many.
        in_order: Whether samples are dealt in order, whatever they cost.
        cost: The column whose numbers count as elements; empty for the lengths of samples.

    Raises:
        BadArgumentError: A value is out of range.
    """

    length_cost: float = 0.0
    square_cost: float = 0.0
    speeds: tuple[float, ...] = ()
    accumulate: int = 1
    sizes: tuple[int, ...] = ()
    in_order: bool = False
    cost: str = ""

    def __post_init__(self) -> None:
        check_range("accumulate", self.accumulate, low=1, high=MAX_ACCUMULATED + 1)
        for field in ("length_cost", "square_cost"):
            value = getattr(self, field)
            if not (math.isfinite(value) and 0 <= value <= _MOST_COST):
                raise BadArgumentError(
                    f"{field} is {value}, must be in [0, {_MOST_COST:g}]", field=field
                )
        for size in self.sizes:
            check_range("sizes", size, low=1, high=1 << 31)
        for speed in self.speeds:
            if not (math.isfinite(speed) and 1 / _MOST_SPEED <= speed <= _MOST_SPEED):
                raise BadArgumentError(
                    f"a speed is {speed}, must be in [{1 / _MOST_SPEED:g}, {_MOST_SPEED:g}]",
                    field="speeds",
                )


_MOST_COST = 1e9
_MOST_SPEED = 1e3


def deal_evenly(
    costs: _Costs, edges: _Array, part_edges: _Array, loads: _Costs, pace: _Costs
) -> _Array:
    """Return the part that gets each sample, and add its cost to the load of that part.

    In each slice, the costliest sample that is left goes to the part with the least load times
    pace, among parts that are not full there; ties go to the first part. Samples of equal cost are
    dealt in order.

    Args:
        costs: ``(samples,) float64``: costs of one global batch, each >= 0.
        edges: ``(slices + 1,) int64``: where each slice starts, and where the last one ends. No
            sample leaves its slice.
        part_edges: ``(parts + 1,) int64``: where each part would start if samples were dealt in
            order, and where the last one would end. A part gets as many samples of each slice as it
            would get then.
        loads: ``(parts,) float64``: the cost that each part has already; updated in place.
        pace: ``(parts,) float64``: the time that each part takes for a unit of cost.

    Returns:
        ``(samples,) int64``.
    """
    owners = np.empty(len(costs), np.int64)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rooms = np.diff(np.clip(part_edges, low, high)).tolist()
        heap = [(float(loads[part] * pace[part]), part) for part, room in enumerate(rooms) if room]
        heapq.heapify(heap)
        falling = low + np.argsort(-costs[low:high], kind="stable")
        for sample in falling.tolist():
            _, part = heap[0]
            owners[sample] = part
            loads[part] += costs[sample]
            rooms[part] -= 1
            if rooms[part]:
                heapq.heapreplace(heap, (float(loads[part] * pace[part]), part))
            else:
                heapq.heappop(heap)
    return owners


def slices_of(position: int, count: int, *, lanes: int, unit: int) -> _Array:
    """Return where the slices of a global batch start, one for each lane, and where the last ends.

    Args:
        position: First position of the global batch.
        count: Samples of the global batch.
        lanes: Number of lanes of the order.
        unit: The order's unit.

    Returns:
        ``(slices + 1,) int64``, from 0 to `count`.
    """
    if lanes == 1:
        return np.array([0, count])
    first = position // unit
    units = np.arange(first, (position + count - 1) // unit + 1) * unit
    within = np.arange(lanes) * unit // lanes
    edges = (units[:, None] + within).reshape(-1) - position
    inner = edges[(edges > 0) & (edges < count)]
    return np.concatenate([[0], inner, [count]])


def check_sizes(deal: DealSpec, parts: int, global_batch_size: int) -> None:
    """Refuse sizes that are not those of all parts of a global batch.

    Raises:
        BadArgumentError: Their number or their sum is another.
    """
    if not deal.sizes:
        return
    if len(deal.sizes) != parts or sum(deal.sizes) != global_batch_size:
        raise BadArgumentError(
            f"deal has {len(deal.sizes)} sizes, together {sum(deal.sizes)}, but {parts} ranks "
            f"share a global batch of {global_batch_size}; it must have one size for each, and "
            "their sum must be that",
            field="deal.sizes",
        )


def part_edges_of(deal: DealSpec, parts: int, count: int) -> _Array:
    """Return where each part of a global batch starts, and where the last one ends.

    Args:
        deal: The options.
        parts: Number of parts.
        count: Samples of the batch; fewer than in a full one are shared in proportion.

    Returns:
        ``(parts + 1,) int64``, from 0 to `count`.
    """
    if not deal.sizes:
        return np.arange(parts + 1) * count // parts
    edges: _Array = np.concatenate([[0], np.cumsum(deal.sizes)])
    shared: _Array = edges * count // edges[-1]
    return shared


def check_speeds(deal: DealSpec, parts: int) -> _Costs:
    """Return the time that each part takes for a unit of cost: (parts,) float64.

    Raises:
        BadArgumentError: Speeds are given, but not one for each part.
    """
    if deal.speeds and len(deal.speeds) != parts:
        raise BadArgumentError(
            f"deal has {len(deal.speeds)} speeds, and {parts} ranks have samples of their own; it "
            "must have one speed for each of them, or none",
            field="deal.speeds",
        )
    return 1.0 / np.array(deal.speeds or [1.0] * parts, np.float64)
