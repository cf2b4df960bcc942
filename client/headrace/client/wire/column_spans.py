"""Where the columns of a batch lie in its payload, independent of memory.

The places are the same in any copy of the payload, in another process or on another device.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.client.wire.payload_layout import ColumnView
from headrace.payload import BFLOAT16


@dataclass(frozen=True, slots=True)
class ArraySpan:
    """One array in a payload: ``shape`` of ``dtype``, from byte ``offset`` on, in C order."""

    offset: int
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """The arrays of one column; see `ColumnView`."""

    kind: int
    values: ArraySpan
    offsets: ArraySpan | None
    valid: ArraySpan | None


def span_of(view: ColumnView, payload: NDArray[np.uint8]) -> ColumnSpan:
    """Return where the arrays of a column lie in ``payload``."""
    return ColumnSpan(
        view.kind,
        array_span(view.values, payload),
        None if view.offsets is None else array_span(view.offsets, payload),
        None if view.valid is None else array_span(view.valid, payload),
    )


def array_span(array: NDArray[np.generic], payload: NDArray[np.uint8]) -> ArraySpan:
    """Return where an array lies in ``payload``, of which it is a view."""
    # An array without elements may have any address.
    start = array.ctypes.data - payload.ctypes.data if array.size else 0
    return ArraySpan(start, array.dtype.str, array.shape)


def view_of(span: ColumnSpan, payload: NDArray[np.uint8]) -> ColumnView:
    """Return a column's views of another copy of the payload."""
    return ColumnView(
        span.kind,
        _array(span.values, payload),
        None if span.offsets is None else _array(span.offsets, payload),
        None if span.valid is None else _array(span.valid, payload),
    )


def array_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return an array as a tensor that shares its memory."""
    try:
        return torch.from_numpy(array)
    except TypeError:
        if array.dtype != BFLOAT16:
            raise
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def tensor_of(span: ArraySpan, payload: torch.Tensor) -> torch.Tensor:
    """Return an array as a view of a copy of the payload, ``(payload_bytes,) uint8``."""
    dtype = array_tensor(np.empty(0, np.dtype(span.dtype))).dtype
    size = prod(span.shape) * dtype.itemsize
    if not size:
        return torch.empty(span.shape, dtype=dtype, device=payload.device)
    return payload[span.offset : span.offset + size].view(dtype).view(span.shape)


def _array(span: ArraySpan, payload: NDArray[np.uint8]) -> NDArray[Any]:
    return np.ndarray(span.shape, np.dtype(span.dtype), payload.data, span.offset)
