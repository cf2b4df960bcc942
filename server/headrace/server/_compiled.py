"""What a batch costs most, compiled: loops that run outside of Python's lock.

Only `headrace.server._kernels` imports this module, because its import compiles, or loads what an
earlier process compiled. Every function does what a NumPy path beside its caller does, and the
tests hold the two equal; none of them reads outside of the arrays that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from headrace.server._kernels import KERNELS

_Function = TypeVar("_Function", bound=Callable[..., Any])

_TILE = 64  # rows that are looked up together: all their lines are on their way at once
_AHEAD = 24  # rows that are on their way while one is copied (measured: 16 to 32 are alike)
_WALKED = 256  # numbers that go through a network together (measured: 8 ns each; 27 one by one)
_LINE = 64
_MOST_LINES = 16  # of one row that are asked for ahead; of longer ones the processor notices

_BYTES_IN = nb.types.Array(nb.uint8, 1, "C", readonly=True)
_BYTES_OUT = nb.types.Array(nb.uint8, 1, "C")
_INTS_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
_INTS_OUT = nb.types.Array(nb.int64, 1, "C")
_SLOTS_IN = nb.types.Array(nb.int32, 1, "C", readonly=True)
_TABLE_IN = nb.types.Array(nb.int64, 2, "C", readonly=True)
_TABLE_OUT = nb.types.Array(nb.int64, 2, "C")
_BUCKETS_IN = nb.types.Array(nb.uint16, 1, "C", readonly=True)
_WORDS_OUT = nb.types.Array(nb.uint64, 1, "C")
_COUNTS = nb.types.Array(nb.int32, 1, "C")
_HALVES = nb.types.Array(nb.uint32, 1, "C")
_DRAWS_IN = nb.types.Array(nb.uint16, 2, "C", readonly=True)
_DRAWS_OUT = nb.types.Array(nb.uint16, 2, "C")


def _kernel(*signature: Any, result: Any = nb.void) -> Callable[[_Function], _Function]:
    """Compile a function now, for these arguments alone, or take it from Numba's cache."""

    def compiled(function: _Function) -> _Function:
        KERNELS.check()
        made: _Function
        try:
            made = nb.njit(result(*signature), nogil=True, cache=True)(function)
        except (RuntimeError, OSError):
            # No folder to keep it in can be written to.
            made = nb.njit(result(*signature), nogil=True)(function)
        return made

    return compiled


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _copy(typing: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:  # noqa: PLR0917 - as Numba calls it
    """Copy ``size`` bytes: what C calls memcpy."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, begin, found, first, length = values
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in ((signature.args[0], out), (signature.args[2], found))
        ]
        places = [
            builder.gep(array.data, [index])
            for array, index in zip(arrays, (begin, first), strict=True)
        ]
        cgutils.raw_memcpy(builder, places[0], places[1], length, 1)
        return context.get_dummy_value()

    return nb.void(target, to, source, at, size), build


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _fetch(typing: Any, source: Any, at: Any) -> Any:
    """Ask for the cache line of one byte."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, values[0])
        pointer, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(builder.gep(array.data, [values[1]]), pointer)
        kind = ir.FunctionType(ir.VoidType(), [pointer, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Into the second cache: of requests by the first there are few, and 160-byte rows came in
        # 65 us instead of 92 (4,096 of them).
        builder.call(function, [place, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return nb.void(source, at), build


@_kernel(_DRAWS_IN, nb.uint32, nb.uint32, _HALVES, _HALVES)
def _turn_all(
    tables: NDArray[np.uint16],
    columns: np.uint32,
    rows: np.uint32,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
) -> None:
    """Send numbers, given as two halves each, once through all rounds of a network."""
    for turn in range(0, tables.shape[0], 2):
        for i in range(highs.size):
            # What falls below zero wraps around and is the greater.
            low = np.uint32(lows[i] + np.uint32(tables[turn, np.uint64(highs[i])]))
            low = min(low, np.uint32(low - columns))
            high = np.uint32(highs[i] + np.uint32(tables[turn + 1, np.uint64(low)]))
            highs[i] = min(high, np.uint32(high - rows))
            lows[i] = low


@_kernel(_DRAWS_IN, nb.int64, nb.int64, _INTS_IN, _INTS_OUT)
def walk(
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    places: NDArray[np.int64],
    out: NDArray[np.int64],
) -> None:
    """Do what `headrace.order` does with NumPy: permute places through a network's tables."""
    height = -(-count // width)
    columns, rows = np.uint32(width), np.uint32(height)
    highs, lows = np.empty(_WALKED, np.uint32), np.empty(_WALKED, np.uint32)
    # Round by round for many numbers, not number by number: no round waits for the one before it.
    for first in range(0, places.size, _WALKED):
        here = min(_WALKED, places.size - first)
        for i in range(here):
            high = np.uint64(places[first + i]) // np.uint64(width)
            highs[i] = high
            lows[i] = np.uint64(places[first + i]) - high * np.uint64(width)
        _turn_all(tables, columns, rows, highs[:here], lows[:here])
        for i in range(here):
            number = np.int64(highs[i]) * width + np.int64(lows[i])
            while number >= count:
                # In the surplus of the rectangle; few are.
                highs[0], lows[0] = number // width, number % width
                _turn_all(tables, columns, rows, highs[:1], lows[:1])
                number = np.int64(highs[0]) * width + np.int64(lows[0])
            out[first + i] = number


@_kernel(nb.uint64, result=nb.uint64)
def _mix(word: np.uint64) -> np.uint64:
    """Mix the bits of a word: ``docs/order.md`` has the function."""
    word = np.uint64(word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = np.uint64(word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(word ^ (word >> np.uint64(31)))


@_kernel(nb.uint64, nb.uint64, nb.int64, _WORDS_OUT)
def sorting_words(
    key: np.uint64, second_key: np.uint64, number_bits: int, out: NDArray[np.uint64]
) -> None:
    """Make words that, sorted, hold a permutation of the order in their lowest bits."""
    shift = np.uint64(number_bits)
    for i in range(out.size):
        drawn = _mix(np.uint64(_mix(np.uint64(key + np.uint64(i))) ^ second_key))
        out[i] = np.uint64((drawn >> np.uint64(32)) << shift) | np.uint64(i)


@_kernel(nb.uint64, nb.uint64, nb.int64, nb.int64, _DRAWS_OUT)
def network_tables(
    key: np.uint64, second_key: np.uint64, width: int, height: int, out: NDArray[np.uint16]
) -> None:
    """Make the tables of a `headrace.order.Network`: what each round adds, by the other half."""
    for turn in range(out.shape[0]):
        size, modulus = (width, height) if turn % 2 else (height, width)
        first = np.uint64(np.uint64(turn) << np.uint64(56))
        for half in range(min(size, out.shape[1])):
            counter = np.uint64(first + np.uint64(half))
            drawn = _mix(np.uint64(_mix(np.uint64(key + counter)) ^ second_key))
            share = np.uint64((drawn >> np.uint64(32)) * np.uint64(modulus))
            out[turn, half] = share >> np.uint64(32)


@_kernel(_INTS_IN, _INTS_IN, nb.int64, _INTS_OUT, _INTS_OUT, result=nb.boolean)
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


@_kernel(_COUNTS, _INTS_OUT, _SLOTS_IN, nb.int64)
def pin(
    pins: NDArray[np.int32], last_use: NDArray[np.int64], slots: NDArray[np.int32], now: int
) -> None:
    """Count one reader more of each slot, and note when it began."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] += 1
            last_use[slot] = now


@_kernel(_SLOTS_IN, _INTS_IN, _COUNTS, _INTS_OUT, nb.int64, _COUNTS, result=nb.int64)
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


@_kernel(_SLOTS_IN, _INTS_IN, _INTS_OUT, nb.int64, result=nb.boolean)
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


@_kernel(_COUNTS, _SLOTS_IN)
def unpin(pins: NDArray[np.int32], slots: NDArray[np.int32]) -> None:
    """Count one reader less of each slot."""
    for slot in slots:
        if 0 <= slot < pins.size:
            pins[slot] -= 1


@_kernel(_INTS_IN, _BUCKETS_IN, nb.int64, _INTS_IN, _INTS_OUT, _INTS_OUT)
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


@_kernel(_DRAWS_IN, nb.int64, nb.int64, nb.int64, _HALVES, _HALVES, _INTS_OUT)
def _walk_range(  # noqa: PLR0917 - the arrays that Numba wants one by one
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    first: int,
    highs: NDArray[np.uint32],
    lows: NDArray[np.uint32],
    out: NDArray[np.int64],
) -> None:
    """Do what `walk` does for consecutive places, as many as ``out`` takes."""
    columns, rows = np.uint32(width), np.uint32(-(-count // width))
    high, low = np.uint32(first // width), np.uint32(first % width)
    for i in range(out.size):
        highs[i], lows[i] = high, low
        low += np.uint32(1)
        if low == columns:
            low = np.uint32(0)
            high += np.uint32(1)
    _turn_all(tables, columns, rows, highs[: out.size], lows[: out.size])
    for i in range(out.size):
        number = np.int64(highs[i]) * width + np.int64(lows[i])
        while number >= count:
            # In the surplus of the rectangle; few are.
            highs[0], lows[0] = number // width, number % width
            _turn_all(tables, columns, rows, highs[:1], lows[:1])
            number = np.int64(highs[0]) * width + np.int64(lows[0])
        out[i] = number


@_kernel(
    _TABLE_IN,
    _INTS_IN,
    _DRAWS_IN,
    nb.int64,
    nb.int64,
    _TABLE_IN,
    _BUCKETS_IN,
    nb.int64,
    _INTS_IN,
    _TABLE_OUT,
    _INTS_OUT,
    _INTS_OUT,
)
def find_places(  # noqa: PLR0917 - one loop, and the arrays that Numba wants one by one
    ranges: NDArray[np.int64],
    whole: NDArray[np.int64],
    tables: NDArray[np.uint16],
    width: int,
    count: int,
    pieces: NDArray[np.int64],
    buckets: NDArray[np.uint16],
    shift: int,
    blocks: NDArray[np.int64],
    found: NDArray[np.int64],
    touched: NDArray[np.int64],
    touched_ends: NDArray[np.int64],
) -> None:
    """Find the samples at places of a window of the order, and their blocks.

    Args:
        ranges: ``(batches, 2)``: places ``[first, end)`` of the window that make a batch.
        whole: The window's permutation, if it is small enough to be made as a whole.
        tables: Of its network, if not.
        width: As for `walk`.
        count: Samples of the window.
        pieces: ``(pieces + 1, 4)``: consecutive samples of one block, as they lie before the
            window is permuted: place of the first, its id, its place in its block, and which of
            the blocks; of the last row, where the pieces end.
        buckets: As for `find_spans`, of the pieces.
        shift: As for `find_spans`.
        blocks: The window's distinct blocks, ascending.
        found: ``(3, samples)``: takes ids, blocks and places in blocks, batch after batch.
        touched: Takes the distinct blocks of each batch, ascending, batch after batch.
        touched_ends: Takes where those of each batch end.
    """
    seen = np.zeros(blocks.size, np.uint8)
    numbers = np.empty(_WALKED, np.int64)
    highs, lows = np.empty(_WALKED, np.uint32), np.empty(_WALKED, np.uint32)
    last = pieces.shape[0] - 2
    at = ended = 0
    for batch in range(ranges.shape[0]):
        end = min(ranges[batch, 1], count)
        for first in range(max(0, ranges[batch, 0]), end, _WALKED):
            size = min(_WALKED, end - first, found.shape[1] - at)
            if whole.size == count:
                numbers[:size] = whole[first : first + size]
            else:
                _walk_range(tables, width, count, first, highs, lows, numbers[:size])
            for i in range(size):
                place = numbers[i]
                bucket = min(np.uint64(place >> shift), np.uint64(buckets.size - 1))
                piece = np.int64(buckets[bucket])
                while piece < last and pieces[np.uint64(piece + 1), 0] <= place:
                    piece += 1
                row = np.uint64(piece)
                further = place - pieces[row, 0]
                own = np.uint64(pieces[row, 3])
                seen[own] = 1
                found[0, at + i] = pieces[row, 1] + further
                found[1, at + i] = blocks[own]
                found[2, at + i] = pieces[row, 2] + further
            at += size
        for index in range(blocks.size):
            if seen[index]:
                touched[ended] = blocks[index]
                ended += 1
                seen[index] = 0
        touched_ends[batch] = ended


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def _fetch_all(memory: NDArray[np.uint8], begin: int, size: int) -> None:
    """Ask for the first lines of some bytes."""
    for line in range(begin & -_LINE, begin + min(size, _MOST_LINES * _LINE), _LINE):
        _fetch(memory, line)


@_kernel(
    _BYTES_IN,
    _SLOTS_IN,
    _INTS_IN,
    _INTS_IN,
    _INTS_IN,
    _INTS_IN,
    _BYTES_OUT,
    result=nb.boolean,
)
def _gather_column(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    field: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather the only column of a part: each row is copied when it has had time to come."""
    row_bytes, unit, at, size, to = field[1], field[2], field[3], field[4], field[5]
    begins = np.empty(_AHEAD, np.int64)
    for coming in range(offsets.size + _AHEAD):
        i = coming - _AHEAD
        place = np.uint64(coming % _AHEAD)
        if i >= 0:
            if size == 8:  # noqa: PLR2004 - sizes that a processor moves at once
                _copy(out, to + 8 * i, arena, begins[place], 8)
            elif size == 4:  # noqa: PLR2004
                _copy(out, to + 4 * i, arena, begins[place], 4)
            else:
                _copy(out, to + size * i, arena, begins[place], size)
        if coming < offsets.size:
            base = bases[slot_of[blocks[coming]]] * unit
            begin = base + offsets[coming] * row_bytes
            if begin < 0 or begin + row_bytes > arena.size:
                return False
            begins[place] = begin + at
            _fetch_all(arena, begin + at, size)
    return True


@_kernel(
    _BYTES_IN,
    _SLOTS_IN,
    _INTS_IN,
    _INTS_IN,
    _INTS_IN,
    _TABLE_IN,
    _BYTES_OUT,
    result=nb.boolean,
)
def _gather_columns(  # noqa: C901, PLR0917 - one loop, and the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fields: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather several columns of one part: rows come while those before them are taken apart."""
    row_bytes, unit = fields[0, 1], fields[0, 2]
    begins = np.empty((2, _TILE), np.int64)
    for coming in range(0, offsets.size + _TILE, _TILE):
        turn = (coming // _TILE) % 2
        for i in range(min(_TILE, offsets.size - coming)):
            base = bases[slot_of[blocks[coming + i]]] * unit
            begin = base + offsets[coming + i] * row_bytes
            if begin < 0 or begin + row_bytes > arena.size:
                return False
            begins[turn, i] = begin
            _fetch_all(arena, begin, row_bytes)
        first = coming - _TILE
        rows = min(_TILE, offsets.size - first) if first >= 0 else 0
        for field in range(fields.shape[0]):
            at, size = fields[field, 3], fields[field, 4]
            to = fields[field, 5] + first * size
            if size == 4:  # noqa: PLR2004 - sizes that a processor moves at once
                for i in range(rows):
                    _copy(out, to + 4 * i, arena, begins[1 - turn, i] + at, 4)
            elif size == 8:  # noqa: PLR2004
                for i in range(rows):
                    _copy(out, to + 8 * i, arena, begins[1 - turn, i] + at, 8)
            elif size == 1:
                for i in range(rows):
                    out[to + i] = arena[begins[1 - turn, i] + at]
            else:
                for i in range(rows):
                    _copy(out, to + size * i, arena, begins[1 - turn, i] + at, size)
    return True


@_kernel(
    _BYTES_IN,
    _SLOTS_IN,
    _TABLE_IN,
    _INTS_IN,
    _INTS_IN,
    _TABLE_IN,
    _TABLE_IN,
    _BYTES_OUT,
    result=nb.boolean,
)
def gather(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    fields: NDArray[np.int64],
    gaps: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Gather columns of fixed size.

    Args:
        arena: Where the blocks lie.
        slot_of: The slot of each block.
        bases: ``(parts, slots)``: where each part of the block in a slot begins.
        blocks: The block of each sample.
        offsets: Its place in that block.
        fields: ``(columns, 6)``: part; bytes of a row of it; bytes that its bases count in; where
            the value begins in a row; its bytes; where the column begins in ``out``. Ordered by
            part.
        gaps: ``(gaps, 2)``: bytes ``[begin, end)`` of ``out`` that become zero.
        out: Takes the columns.

    Returns:
        Whether all of it lies in the arena and in ``out``; if not, the tables are wrong.
    """
    for field in range(fields.shape[0]):
        end = fields[field, 5] + offsets.size * fields[field, 4]
        if fields[field, 5] < 0 or end > out.size:
            return False
    for gap in range(gaps.shape[0]):
        for at in range(max(0, gaps[gap, 0]), min(gaps[gap, 1], out.size)):
            out[at] = 0
    begin = 0
    while begin < fields.shape[0]:
        part, end = fields[begin, 0], begin + 1
        while end < fields.shape[0] and fields[end, 0] == part:
            end += 1
        if end == begin + 1:
            is_found = _gather_column(
                arena, slot_of, bases[part], blocks, offsets, fields[begin], out
            )
        else:
            is_found = _gather_columns(
                arena, slot_of, bases[part], blocks, offsets, fields[begin:end], out
            )
        if not is_found:
            return False
        begin = end
    return True


@_kernel(
    _BYTES_IN,
    _SLOTS_IN,
    _TABLE_IN,
    _INTS_IN,
    _INTS_IN,
    nb.int64,
    nb.int64,
    _INTS_OUT,
    _INTS_OUT,
    _INTS_OUT,
    result=nb.boolean,
)
def find_values(  # noqa: PLR0917 - the arrays that Numba wants one by one
    arena: NDArray[np.uint8],
    slot_of: NDArray[np.int32],
    bases: NDArray[np.int64],
    blocks: NDArray[np.int64],
    offsets: NDArray[np.int64],
    row_bytes: int,
    at: int,
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> bool:
    """Find the values of a ragged column.

    Args:
        arena: As for `gather`.
        slot_of: As for `gather`.
        bases: As for `gather`.
        blocks: As for `gather`.
        offsets: As for `gather`.
        row_bytes: Bytes of a packed row.
        at: Where the value's span lies in it.
        begins: Takes where each value begins in the arena.
        lengths: Takes its bytes.
        edges: Takes where each begins, and the last ends, when they lie back to back.

    Returns:
        As `gather`.
    """
    words = arena[: arena.size // 8 * 8].view(np.int64)
    edges[0] = 0
    for first in range(0, offsets.size, _TILE):
        rows = min(_TILE, offsets.size - first)
        for i in range(first, first + rows):
            place = (bases[0, slot_of[blocks[i]]] + offsets[i]) * row_bytes + at
            if place < 0 or place % 8 or place + 16 > arena.size:
                return False
            begins[i] = place
            _fetch(arena, place)
        for i in range(first, first + rows):
            word = begins[i] // 8
            begins[i] = words[word]
            length = words[word + 1]
            if length < 0 or begins[i] < 0 or begins[i] + length > arena.size:
                return False
            lengths[i] = length
            edges[i + 1] = edges[i] + length
    return True


@_kernel(_BYTES_IN, _INTS_IN, _INTS_IN, _BYTES_OUT, result=nb.boolean)
def copy_spans(
    memory: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> bool:
    """Copy spans of bytes back to back; return whether all lie in the memory and fit."""
    at = 0
    for first in range(0, begins.size, _TILE):
        last = min(first + _TILE, begins.size)
        for i in range(first, last):
            if lengths[i] < 0 or begins[i] < 0 or begins[i] + lengths[i] > memory.size:
                return False
            _fetch_all(memory, begins[i], lengths[i])
        for i in range(first, last):
            if at + lengths[i] > out.size:
                return False
            _copy(out, at, memory, begins[i], lengths[i])
            at += lengths[i]
    return True
