"""The counter-based hash that all random choices of the order come from.

``docs/order.md`` specifies it with test vectors. A key is 64 bits and is made by absorbing words
one after the other; a draw is a function of a key and a counter, so any draw can be made without
the ones before it, and two keys that differ in one word share nothing.
"""

from __future__ import annotations

import enum
from typing import Final

import numpy as np
from numpy.typing import NDArray

_MASK: Final = (1 << 64) - 1
# The increment and the multipliers of SplitMix64. Source: Steele, Lea and Flood, "Fast splittable
# pseudorandom number generators" (2014), with Stafford's variant 13 as the finalizer.
_INCREMENT: Final = 0x9E3779B97F4A7C15
_MULTIPLIERS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS: Final = (30, 27, 31)


class Stream(enum.IntEnum):
    """What a key is for; the numbers are part of the order's versions, and version 1 had 1 to 5."""

    SECOND = 6
    DATASET = 7
    PHASE = 8
    SLOTS = 9
    CHOICE = 10
    SPAN = 11
    SAMPLE = 12
    PHASES = 13
    COINS = 14
    DEAL = 15
    STEP = 16
    SKIPS = 17
    PACKING = 18
    AUGMENT = 19
    BUCKETS = 20


def derive(key: int, *words: int) -> int:
    """Absorb words into a key.

    Args:
        key: The key to start from, in [0, 2**64); all keys are derived from 0.
        words: Numbers in [0, 2**64), absorbed in this order.

    Returns:
        A key in [0, 2**64).
    """
    for word in words:
        key = _mix(key ^ _mix((word + _INCREMENT) & _MASK))
    return key


def derive_each(keys: NDArray[np.uint64], *words: NDArray[np.int64] | int) -> NDArray[np.uint64]:
    """Absorb words into many keys, as `derive` does into one.

    Args:
        keys: (n,) uint64; not changed.
        words: Numbers >= 0, or (n,) int64 of them, absorbed in this order.

    Returns:
        (n,) uint64.
    """
    spare = np.empty_like(keys)
    for word in words:
        if isinstance(word, int):
            keys = keys ^ np.uint64(_mix((word + _INCREMENT) & _MASK))
        else:
            absorbed = word.astype(np.uint64)
            absorbed += np.uint64(_INCREMENT)
            _mix_in_place(absorbed, spare)
            absorbed ^= keys
            keys = absorbed
        _mix_in_place(keys, spare)
    return keys


def draw(key: int, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Draw one 64-bit number for each counter.

    For a fixed key this is a bijection of the counters, so draws of one key never tie.

    Args:
        key: A key in [0, 2**64).
        counters: (n,) uint64; not changed.

    Returns:
        (n,) uint64, owned by the caller.
    """
    return _draw(counters + np.uint64(key), np.uint64(derive(key, Stream.SECOND)))


def sample_keys(seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the keys of positions of an epoch, for random transforms of their samples.

    Args:
        seed: The seed of the order.
        epoch: The epoch.
        positions: (n,) int64.

    Returns:
        (n,) uint64; two positions of an epoch never share one.
    """
    return draw(derive(0, seed, epoch, Stream.SAMPLE), positions.astype(np.uint64))


def transform_keys(keys: NDArray[np.uint64], step: int, place: int) -> NDArray[np.uint64]:
    """Return the keys of one random transform, one for each sample: docs/augmentation.md.

    Args:
        keys: (n,) uint64, as `sample_keys` gives them.
        step: The step's place in the request, >= 0.
        place: The transform's place in the step, >= 0.
    """
    return derive_each(keys, int(Stream.AUGMENT), step, place)


def uniform_draws(keys: NDArray[np.uint64], count: int) -> NDArray[np.float64]:
    """Return (n, count) float64 in [0, 1): draw i of each key, multiples of 2^-53."""
    counters = np.broadcast_to(np.arange(count, dtype=np.uint64), (len(keys), count)).ravel()
    drawn = draw_each(np.repeat(keys, count), counters)
    found = (drawn >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return found.reshape(len(keys), count)


def draw_each(
    keys: NDArray[np.uint64],
    counters: NDArray[np.uint64],
    second_keys: NDArray[np.uint64] | None = None,
) -> NDArray[np.uint64]:
    """Draw one number for each pair of a key and a counter, as `draw` does.

    Args:
        keys: (n,) or (1,) uint64.
        counters: (n,) uint64.
        second_keys: What `second_keys_of` returns for the keys, if they serve several draws.
    """
    return _draw(counters + keys, second_keys_of(keys) if second_keys is None else second_keys)


def second_keys_of(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return what a draw adds to each key between its two rounds of mixing."""
    return derive_each(keys, Stream.SECOND)


def _draw(
    drawn: NDArray[np.uint64], second_keys: NDArray[np.uint64] | np.uint64
) -> NDArray[np.uint64]:
    spare = np.empty_like(drawn)
    _mix_in_place(drawn, spare)
    drawn ^= second_keys
    _mix_in_place(drawn, spare)
    return drawn


def _mix(word: int) -> int:
    word ^= word >> _SHIFTS[0]
    word = word * _MULTIPLIERS[0] & _MASK
    word ^= word >> _SHIFTS[1]
    word = word * _MULTIPLIERS[1] & _MASK
    return word ^ (word >> _SHIFTS[2])


def _mix_in_place(words: NDArray[np.uint64], spare: NDArray[np.uint64]) -> None:
    np.right_shift(words, np.uint64(_SHIFTS[0]), out=spare)
    words ^= spare
    words *= np.uint64(_MULTIPLIERS[0])
    np.right_shift(words, np.uint64(_SHIFTS[1]), out=spare)
    words ^= spare
    words *= np.uint64(_MULTIPLIERS[1])
    np.right_shift(words, np.uint64(_SHIFTS[2]), out=spare)
    words ^= spare
