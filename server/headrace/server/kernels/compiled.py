"""What a batch costs most, compiled: loops that run outside of Python's lock.

Only `headrace.server.kernels.loader` imports this module, because its import compiles, or loads
what an earlier process compiled. Every function does what a NumPy path beside its caller does, and
the tests hold the two equal; none of them reads outside of the arrays that it is given.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import (
    BUCKETS_IN,
    COUNTS,
    INTS_IN,
    INTS_OUT,
    SLOTS_IN,
    kernel,
)
from headrace.server.kernels.deal_evenly import deal_evenly
from headrace.server.kernels.find_dealt import find_dealt
from headrace.server.kernels.gather_rows import copy_spans, gather
from headrace.server.kernels.images import resample
from headrace.server.kernels.pack_rows import best_fit, place_spans
from headrace.server.kernels.permute import (
    network_tables,
    sorting_words,
    walk,
)
from headrace.server.kernels.write_batches import measure_batches, write_batches
from headrace.server.kernels.write_parts import copy_spans_to_parts, end_hash, hash_parts
from headrace.server.kernels.xxh3 import BLOCK_BYTES, FIRST_SUMS, xxh3

__all__ = [
    "BLOCK_BYTES",
    "FIRST_SUMS",
    "ask",
    "best_fit",
    "copy_spans",
    "copy_spans_to_parts",
    "deal_evenly",
    "distinct",
    "end_hash",
    "find_dealt",
    "find_spans",
    "gather",
    "hash_parts",
    "measure_batches",
    "network_tables",
    "pin",
    "pin_all",
    "place_spans",
    "resample",
    "sorting_words",
    "unpin",
    "walk",
    "write_batches",
    "xxh3",
]


@kernel(INTS_IN, INTS_IN, nb.int64, INTS_OUT, INTS_OUT, result=nb.boolean)
def distinct(
    blocks: NDArray[np.int64],
    ends: NDArray[np.int64],
    most: int,
    out: NDArray[np.int64],
    out_ends: NDArray[np.int64],
) -> bool:
    """Find the distinct blocks of each of several batches, ascending.

    Args:
        blocks: Of all batches, one after the other.
        ends: Where those of each batch end.
        most: Greatest span of blocks that is worth counting.
        out: Takes the blocks, one batch after the other; as long as ``blocks``.
        out_ends: Takes where those of each batch end.

    Returns:
        Whether it was done; not if the blocks lie further apart.
    """
    if not blocks.size:
        out_ends[:] = 0
        return True
    first = last = blocks[0]
    for block in blocks:
        first, last = min(first, block), max(last, block)
    if last - first >= most:
        return False
    seen = np.zeros(last - first + 1, np.uint8)
    begin = at = 0
    for batch in range(ends.size):
        low, high = last - first, 0
        for i in range(begin, ends[batch]):
            place = blocks[i] - first
            seen[place] = 1
            low, high = min(low, place), max(high, place)
        for place in range(low, high + 1):
            if seen[place]:
                out[at] = place + first
                seen[place] = 0
                at += 1
        begin = ends[batch]
        out_ends[batch] = at
    return True


@kernel(COUNTS, INTS_OUT, SLOTS_IN, nb.int64, nogil=False)
def pin(
    pins: NDArray[np.int32], last_use: NDArray[np.int64], slots: NDArray[np.int32], now: int
) -> None:
    """Count one reader more of each slot, and note when it began."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] += 1
            last_use[slot] = now


@kernel(SLOTS_IN, INTS_IN, COUNTS, INTS_OUT, nb.int64, COUNTS, result=nb.int64, nogil=False)
def pin_all(  # noqa: PLR0917 - the arrays that Numba wants one by one
    slot_of: NDArray[np.int32],
    blocks: NDArray[np.int64],
    pins: NDArray[np.int32],
    last_use: NDArray[np.int64],
    now: int,
    slots: NDArray[np.int32],
) -> int:
    """Find the slots of blocks, and `pin` them if all are cached; return how many are."""
    hits = 0
    for i in range(blocks.size):
        slots[i] = slot_of[blocks[i]] if 0 <= blocks[i] < slot_of.size else 0
        hits += 0 < slots[i] < pins.size
    if hits == blocks.size:
        for slot in slots:
            pins[slot] += 1
            last_use[slot] = now
    return hits


@kernel(SLOTS_IN, INTS_IN, INTS_OUT, nb.int64, result=nb.boolean, nogil=False)
def ask(
    slot_of: NDArray[np.int32], blocks: NDArray[np.int64], asked: NDArray[np.int64], ranking: int
) -> bool:
    """Note that blocks will be read, if all are cached; return whether they are."""
    for block in blocks:
        if not 0 <= block < slot_of.size or not 0 < slot_of[block] < asked.size:
            return False
    for block in blocks:
        slot = slot_of[block]
        # It may have gone meanwhile.
        if 0 < slot < asked.size:
            asked[slot] = ranking
    return True


@kernel(COUNTS, SLOTS_IN, nogil=False)
def unpin(pins: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
    """Count one reader less of each slot."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] -= 1


@kernel(INTS_IN, BUCKETS_IN, nb.int64, INTS_IN, INTS_OUT, INTS_OUT)
def find_spans(  # noqa: PLR0917 - the arrays that Numba wants one by one
    starts: NDArray[np.int64],
    buckets: NDArray[np.uint16],
    shift: int,
    ordinals: NDArray[np.int64],
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64],
) -> None:
    """Do what `headrace.storage.search_starts` does with NumPy."""
    first, last = starts[0], starts.size - 2
    for i in range(ordinals.size):
        ordinal = ordinals[i]
        place = min(max((ordinal - first) >> shift, 0), buckets.size - 1)
        span = np.int64(buckets[np.uint64(place)])
        while span < last and starts[span + 1] <= ordinal:
            span += 1
        spans[i] = span
        offsets[i] = ordinal - starts[span]
