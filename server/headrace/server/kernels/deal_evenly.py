"""Deal samples to ranks so that costs are even, compiled; see `kernels.compiled`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import FLOATS_IN, FLOATS_OUT, INTS_IN, INTS_OUT, kernel


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # Numba has no types
def _is_before(times: NDArray[np.float64], one: int, other: int) -> bool:
    before: bool = times[one] < times[other] or (times[one] == times[other] and one < other)
    return before


@nb.njit  # type: ignore[untyped-decorator]  # as above
def _sink(heap: NDArray[np.int64], size: int, at: int, times: NDArray[np.float64]) -> None:
    """Let a part go down to where it belongs."""
    part = heap[at]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _is_before(times, heap[child + 1], heap[child]):
            child += 1
        if not _is_before(times, heap[child], part):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = part


@kernel(INTS_IN, FLOATS_IN, INTS_IN, INTS_IN, FLOATS_OUT, FLOATS_IN, INTS_OUT)
def deal_evenly(  # noqa: PLR0917 - the arrays that Numba wants one by one
    falling: NDArray[np.int64],
    costs: NDArray[np.float64],
    edges: NDArray[np.int64],
    part_edges: NDArray[np.int64],
    loads: NDArray[np.float64],
    pace: NDArray[np.float64],
    owners: NDArray[np.int64],
) -> None:
    """Do what `headrace.order.deal_evenly` does.

    Args:
        falling: The samples of each slice by falling cost, one slice after the other.
        costs: As it takes them, and so the others.
        edges: The same.
        part_edges: The same.
        loads: The same.
        pace: The same.
        owners: Takes the part of each sample.
    """
    parts = loads.size
    heap, rooms = np.empty(parts, np.int64), np.empty(parts, np.int64)
    times = loads * pace
    for number in range(edges.size - 1):
        low, high = edges[number], edges[number + 1]
        size = 0
        for part in range(parts):
            begin, end = max(part_edges[part], low), min(part_edges[part + 1], high)
            rooms[part] = max(0, end - begin)
            if rooms[part]:
                heap[size] = part
                size += 1
        for at in range(size // 2 - 1, -1, -1):
            _sink(heap, size, at, times)
        for i in range(low, high):
            if not size:
                return
            sample, part = falling[i], heap[0]
            owners[sample] = part
            loads[part] += costs[sample]
            times[part] = loads[part] * pace[part]
            rooms[part] -= 1
            if not rooms[part]:
                size -= 1
                heap[0] = heap[size]
            if size:
                _sink(heap, size, 0, times)
