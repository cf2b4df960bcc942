"""Ordinals of samples and blocks, and the arrays of counts that sources hand out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError


def checked_ordinals(values: NDArray[np.int64], stop: int, what: str) -> NDArray[np.int64]:
    """Return ordinals as int64.

    Args:
        values: ``(n,)``.
        stop: One past the greatest that there is.
        what: Says in the error what is counted.

    Raises:
        BadArgumentError: One is outside ``[0, stop)``.
    """
    array = np.asarray(values, np.int64)
    if len(array) and (int(array.min()) < 0 or int(array.max()) >= stop):
        bad = array[(array < 0) | (array >= stop)][0]
        raise BadArgumentError(f"{what} {bad} is not in [0, {stop})", field=what)
    return array


def read_only(array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a view that nobody can write to."""
    view = array.view()
    view.flags.writeable = False
    return view


def starts_of(counts: list[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each of consecutive parts starts, and where the last ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
