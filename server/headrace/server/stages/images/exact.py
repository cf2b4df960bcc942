"""Compute exponentials and logarithms with the same bits on every machine.

C libraries may differ in the last bit, which would change crops. These functions use only
operations that IEEE 754 rounds exactly: sums, products, quotients and square roots.
"""

from __future__ import annotations

import functools
import math

_HALVINGS = 6
_EXP_TERMS = 16
_LOG_TERMS = 12
_LEAST_EXP = -700.0


def exp(x: float) -> float:
    """Return e to the power of x, to 14 digits for x in [-8, 8], and 0 below -700."""
    if x < _LEAST_EXP:
        return 0.0
    halvings = _HALVINGS
    while abs(x) > 1 << halvings:
        halvings += 1
    part = x / (1 << halvings)
    found = 1.0
    for term in range(_EXP_TERMS, 0, -1):
        found = 1.0 + found * part / term
    for _ in range(halvings):
        found *= found
    return found


@functools.lru_cache
def log(x: float) -> float:
    """Return the natural logarithm of x, for x in [2^-60, 2^60], to 13 digits."""
    for _ in range(_HALVINGS):
        x = math.sqrt(x)
    part = (x - 1.0) / (x + 1.0)
    found = 0.0
    for term in range(2 * _LOG_TERMS + 1, 0, -2):
        found = found * part * part + 1.0 / term
    return 2.0 * (1 << _HALVINGS) * part * found
