"""Check ordinals of samples and blocks, and make the arrays of counts that sources return."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError


def checked_ordinals(values: NDArray[np.int64], stop: int, what: str) -> NDArray[np.int64]:
    """Return ordinals as int64.

    Args:
        values: ``(n,)`` ordinals.
        stop: One more than the largest valid ordinal.
        what: What is counted, for the error.

    Raises:
        BadArgumentError: A value is outside ``[0, stop)``.
    """
    array = np.asarray(values, np.int64)
    if len(array) and (int(array.min()) < 0 or int(array.max()) >= stop):
        bad = array[(array < 0) | (array >= stop)][0]
        raise BadArgumentError(f"{what} {bad} is not in [0, {stop})", field=what)
    return array


def read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a read-only view."""
    view = array.view()
    view.flags.writeable = False
    return view


def starts_of(counts: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the start of each of consecutive parts, and the end of the last."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
