"""How kernels are compiled, and what their arguments are; `kernels.compiled` has the rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba as nb

from headrace.server.kernels.loader import KERNELS

_Function = TypeVar("_Function", bound=Callable[..., Any])

BYTES_IN = nb.types.Array(nb.uint8, 1, "C", readonly=True)
BYTES_OUT = nb.types.Array(nb.uint8, 1, "C")
INTS_IN = nb.types.Array(nb.int64, 1, "C", readonly=True)
INTS_OUT = nb.types.Array(nb.int64, 1, "C")
SLOTS_IN = nb.types.Array(nb.int32, 1, "C", readonly=True)
FLOATS_IN = nb.types.Array(nb.float64, 1, "C", readonly=True)
FLOATS_OUT = nb.types.Array(nb.float64, 1, "C")
TABLE_IN = nb.types.Array(nb.int64, 2, "C", readonly=True)
TABLE_OUT = nb.types.Array(nb.int64, 2, "C")
TABLES_IN = nb.types.Array(nb.int64, 3, "C", readonly=True)
TABLES_OUT = nb.types.Array(nb.int64, 3, "C")
BUCKETS_IN = nb.types.Array(nb.uint16, 1, "C", readonly=True)
WORDS_OUT = nb.types.Array(nb.uint64, 1, "C")
COUNTS = nb.types.Array(nb.int32, 1, "C")
HALVES = nb.types.Array(nb.uint32, 1, "C")
DRAWS_IN = nb.types.Array(nb.uint16, 2, "C", readonly=True)
DRAWS_OUT = nb.types.Array(nb.uint16, 2, "C")


def kernel(
    *signature: Any, result: Any = nb.void, nogil: bool = True
) -> Callable[[_Function], _Function]:
    """Compile a function now, for these arguments alone, or take it from Numba's cache.

    Args:
        signature: Their types.
        result: The type of what it returns.
        nogil: Whether others may run Python meanwhile. Not where it takes less time than getting
            Python's lock back from them.
    """

    def compiled(function: _Function) -> _Function:
        KERNELS.check()
        made: _Function
        try:
            made = nb.njit(result(*signature), nogil=nogil, cache=True)(function)
        except (RuntimeError, OSError):
            # No folder to keep it in can be written to.
            made = nb.njit(result(*signature), nogil=nogil)(function)
        return made

    return compiled
