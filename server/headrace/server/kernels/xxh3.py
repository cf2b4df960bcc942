"""XXH3 of bytes, compiled; see `headrace.server.kernels.compiled`.

The library's function is as fast, but every call of it gives Python's lock away and has to get it
back; this one runs within the loop that gathers the bytes, which Python's lock has no part in.

Source: the XXH3 algorithm of the xxHash specification, 64 bits, no seed, the default secret, for
inputs of more than 240 bytes; the tests hold it equal to the library.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from headrace.server.kernels.compiler import BYTES_IN, kernel

SHORTEST = 241
"""Bytes from which on an input is hashed by this algorithm; it has others for shorter ones."""

_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
        "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
        "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
        "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
        "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    np.uint64,
)
_PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _PRIME_5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_SHORT_1, _SHORT_2, _SHORT_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
FIRST_SUMS = np.array(
    [_SHORT_3, _PRIME_1, _PRIME_2, _PRIME_3, _PRIME_4, _SHORT_2, _PRIME_5, _SHORT_1], np.uint64
)
"""Of no block."""

_AVALANCHE = 0x165667919E3779F9
_STRIPE = 64
_STRIPES = 16  # of a block, each with a part of the secret 8 bytes further on
BLOCK_BYTES = _STRIPE * _STRIPES
"""What is added at once, but for the last of an input, which may be less."""
_SCRAMBLE_AT = 128  # in the secret, and so the others
_LAST_AT = 121
_MERGE_AT = 11
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)

_WORD = ir.IntType(64)
_LANES = ir.VectorType(_WORD, 8)
_SWAPPED = ir.Constant(ir.VectorType(ir.IntType(32), 8), [1, 0, 3, 2, 5, 4, 7, 6])


def _all(number: int) -> ir.Constant:
    return ir.Constant(_LANES, [number] * 8)


def _load(builder: Any, pointer: Any, at: Any) -> Any:
    place = builder.bitcast(builder.gep(pointer, [at]), _LANES.as_pointer())
    loaded = builder.load(place)
    loaded.align = 1
    return loaded


def _stripe(builder: Any, sums: Any, lanes: Any, secret: Any) -> Any:
    """Add a stripe: the product of the halves of each word, and its neighbour."""
    keyed = builder.xor(lanes, secret)
    product = builder.mul(builder.and_(keyed, _all(0xFFFFFFFF)), builder.lshr(keyed, _all(32)))
    neighbours = builder.shuffle_vector(lanes, lanes, _SWAPPED)
    return builder.add(builder.add(sums, neighbours), product)


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _add_stripes(  # noqa: PLR0917 - as Numba calls it
    typing: Any, source: Any, at: Any, count: Any, secret: Any, first: Any, sums: Any
) -> Any:
    """Add whole stripes, with the secret from byte ``first`` on; vectors of 64 bytes.

    LLVM makes of them what the processor has. Numba by itself would go word by word.
    """
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays = [
            context.make_array(signature.args[index])(context, builder, values[index]).data
            for index in (0, 3, 5)
        ]
        pointers = [builder.bitcast(each, ir.IntType(8).as_pointer()) for each in arrays]
        total = cgutils.alloca_once_value(builder, _load(builder, pointers[2], _WORD(0)))
        begin, first_at = values[1], values[4]
        with cgutils.for_range(builder, values[2]) as loop:
            lanes = _load(
                builder, pointers[0], builder.add(begin, builder.mul(loop.index, _WORD(_STRIPE)))
            )
            key_at = builder.add(first_at, builder.mul(loop.index, _WORD(8)))
            key = _load(builder, pointers[1], key_at)
            builder.store(_stripe(builder, builder.load(total), lanes, key), total)
        target = builder.bitcast(pointers[2], _LANES.as_pointer())
        builder.store(builder.load(total), target).align = 8
        return context.get_dummy_value()

    return nb.void(source, at, count, secret, first, sums), build


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def _fold(one: np.uint64, other: np.uint64) -> np.uint64:
    """Multiply to 128 bits; return the lower half xor the upper."""
    low, high = one & _LOW, one >> _HALF
    other_low, other_high = other & _LOW, other >> _HALF
    lowest = low * other_low
    middle, right = high * other_low, low * other_high
    carry = (lowest >> _HALF) + (middle & _LOW) + right
    upper = high * other_high + (middle >> _HALF) + (carry >> _HALF)
    return upper ^ ((carry << _HALF) | (lowest & _LOW))


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def _secret_word(at: int) -> np.uint64:
    """Return the word of the secret at a byte that is none's begin."""
    shift = np.uint64(8 * (at % 8))
    low: np.uint64 = _SECRET[at // 8] >> shift
    high: np.uint64 = _SECRET[at // 8 + 1] << (np.uint64(64) - shift)
    return low | high


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def add_blocks(source: NDArray[np.uint8], at: int, blocks: int, sums: NDArray[np.uint64]) -> None:
    """Add whole blocks; none of them is an input's last, however full."""
    for block in range(blocks):
        _add_stripes(source, at + block * BLOCK_BYTES, _STRIPES, _SECRET, 0, sums)
        for lane in range(8):
            mixed = sums[lane] ^ (sums[lane] >> np.uint64(47)) ^ _SECRET[_SCRAMBLE_AT // 8 + lane]
            sums[lane] = mixed * np.uint64(_SHORT_1)


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def add_last(source: NDArray[np.uint8], at: int, size: int, sums: NDArray[np.uint64]) -> np.uint64:
    """Add an input's last block, and return the hash.

    Args:
        source: Ends where the input does, and has 64 bytes of it at least.
        at: Where the block begins in it.
        size: Of the input, `SHORTEST` or more.
        sums: Of all blocks before.
    """
    _add_stripes(source, at, (source.size - 1 - at) // _STRIPE, _SECRET, 0, sums)
    _add_stripes(source, source.size - _STRIPE, 1, _SECRET, _LAST_AT, sums)
    total = np.uint64(size) * np.uint64(_PRIME_1)
    for pair in range(4):
        place = _MERGE_AT + 16 * pair
        one = sums[2 * pair] ^ _secret_word(place)
        folded: np.uint64 = _fold(one, sums[2 * pair + 1] ^ _secret_word(place + 8))
        total += folded
    total ^= total >> np.uint64(37)
    total *= np.uint64(_AVALANCHE)
    total ^= total >> np.uint64(32)
    return total


@kernel(BYTES_IN, result=nb.uint64)
def xxh3(source: NDArray[np.uint8]) -> np.uint64:
    """Hash an input; 0 if it is shorter than `SHORTEST`."""
    if source.size < SHORTEST:
        return np.uint64(0)
    sums = FIRST_SUMS.copy()
    blocks = (source.size - 1) // BLOCK_BYTES
    add_blocks(source, 0, blocks, sums)
    found: np.uint64 = add_last(source, blocks * BLOCK_BYTES, source.size, sums)
    return found
