"""Deal the samples of a global batch to ranks so that what they cost is even.

Which samples a global batch has does not change, nor how many of them each rank gets.
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
"""Global batches of a step, at most: a batch is dealt after all before it of its step."""


@dataclass(frozen=True, slots=True)
class DealSpec:
    """How samples are dealt to ranks.

    Attributes:
        length_cost: What each element of a sample costs, finite and >= 0.
        square_cost: What the square of a sample's elements costs; of a row, of each document's.
        speeds: For each rank how fast it is beside the others, > 0; none for equal ones.
        accumulate: Global batches of a step, over which costs are even, in [1, `MAX_ACCUMULATED`].

    Raises:
        BadArgumentError: A value is out of range.
    """

    length_cost: float = 0.0
    square_cost: float = 0.0
    speeds: tuple[float, ...] = ()
    accumulate: int = 1

    def __post_init__(self) -> None:
        check_range("accumulate", self.accumulate, low=1, high=MAX_ACCUMULATED + 1)
        for field in ("length_cost", "square_cost"):
            value = getattr(self, field)
            if not (math.isfinite(value) and 0 <= value <= _MOST_COST):
                raise BadArgumentError(
                    f"{field} is {value}, must be in [0, {_MOST_COST:g}]", field=field
                )
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
    """Return the part that gets each sample, and add its cost to what the part has.

    In each slice the costliest sample that is left goes to the part with the least load times pace
    of those that are not full there, the first of several. Equal costs go in order.

    Args:
        costs: ``(samples,) float64`` of one global batch, each >= 0.
        edges: ``(slices + 1,) int64``: where each slice begins, and the last ends; no sample leaves
            its slice.
        part_edges: ``(parts + 1,) int64``: where each part begins if samples are dealt in order,
            and the last ends. A part gets as many samples of each slice as it would have then.
        loads: ``(parts,) float64``: what each part has already; changed.
        pace: ``(parts,) float64``: how long each takes for a unit of cost.

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
    """Return where the slices of a global batch begin that lanes have, and where the last ends.

    Args:
        position: Its first position.
        count: Its samples.
        lanes: How many lanes the order has.
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


def check_speeds(deal: DealSpec, parts: int) -> _Costs:
    """Return how long each part takes for a unit of cost.

    Raises:
        BadArgumentError: There are speeds, and not one for each part.
    """
    if deal.speeds and len(deal.speeds) != parts:
        raise BadArgumentError(
            f"deal has {len(deal.speeds)} speeds, and {parts} ranks have samples of their own; it "
            "must have one speed for each of them, or none",
            field="deal.speeds",
        )
    return 1.0 / np.array(deal.speeds or [1.0] * parts, np.float64)
