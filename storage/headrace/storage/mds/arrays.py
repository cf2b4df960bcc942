"""Decode arrays that store their own shape, and some their type, for all samples at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.encoding import ARRAY_DTYPES, MAX_AXES, Encoding
from headrace.storage.mds.samples import (
    Bytes,
    Spans,
    gather_numbers,
    refuse_first,
    scatter_numbers,
)

_CODES = {dtype: code for code, dtype in ARRAY_DTYPES.items()}
_BYTE = np.dtype(np.uint8)
_REMEDY = "SourceOptions(mixed_arrays=True)"
_MAX_SIDE = 2**31 - 1  # Arrow's shapes have 32 bits


@dataclass(frozen=True, slots=True)
class ArrayType:
    """The common properties of a column's arrays.

    Attributes:
        dtype: The dtype of their elements; `None` if they differ.
        axes: Their number of axes; `None` if they differ in it, or in their elements.
    """

    dtype: np.dtype[Any] | None
    axes: int | None

    @property
    def is_mixed(self) -> bool:
        """Return whether arrays differ in more than the lengths of their axes."""
        return self.dtype is None or self.axes is None

    def merged(self, other: ArrayType) -> ArrayType:
        """Return the common properties of two columns' arrays."""
        if self == other:
            return self
        return ArrayType(self.dtype if self.dtype == other.dtype else None, None)


@dataclass(frozen=True, slots=True, eq=False)
class MixedArrays:
    """The places, types and shapes of a column's arrays.

    Attributes:
        elements: The spans of their elements.
        codes: ``(samples,) uint8``: their types, as keys of `ARRAY_DTYPES`.
        sides: ``(sides,) int32``; the shapes of all arrays back to back.
        edges: ``(samples + 1,) int64``; the start of each shape in ``sides``.
    """

    elements: Spans
    codes: NDArray[np.uint8]
    sides: NDArray[np.int32]
    edges: NDArray[np.int64]


def probe(content: Bytes, spans: Spans, encoding: Encoding) -> ArrayType:
    """Return the common properties of arrays, of which there is at least one.

    Raises:
        DamageError: A value is not an array.
    """
    codes, axes = _types(content, spans, encoding)
    first = ArrayType(ARRAY_DTYPES[int(codes[0])], int(axes[0]))
    if (codes != codes[0]).any():
        return ArrayType(None, None)
    return ArrayType(first.dtype, None) if (axes != axes[0]).any() else first


def mixed_arrays(
    content: Bytes, spans: Spans, encoding: Encoding, *, wanted: ArrayType
) -> MixedArrays:
    """Return the shape, type and place of each array of a column that mixes them.

    Args:
        content: The bytes that spans point into.
        spans: The values of the column.
        encoding: The encoding of the column.
        wanted: The common properties that all its arrays must have.

    Raises:
        DamageError: An array has another type, or its shape does not match its size.
    """
    sizes = np.broadcast_to(np.asarray(spans.sizes, np.int64), spans.starts.shape)
    codes, axes = _types(content, spans, encoding)
    edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(axes)])
    sides = np.empty(int(edges[-1]), np.int32)
    starts, lengths = np.empty_like(spans.starts), np.empty_like(spans.starts)
    for code, count in np.unique(np.stack([codes, axes], axis=1), axis=0).tolist():
        chosen = np.flatnonzero((codes == code) & (axes == count))
        group = Spans(spans.starts[chosen], sizes[chosen])
        alike = ArrayType(wanted.dtype or ARRAY_DTYPES[code], count)
        try:
            shapes, elements = array_shapes(content, group, encoding, wanted=alike)
        except DamageError as error:
            at = None if error.sample is None else int(chosen[error.sample])
            raise DamageError(error.found, at) from error
        sides[edges[chosen][:, np.newaxis] + np.arange(count)] = shapes
        starts[chosen], lengths[chosen] = elements.starts, elements.sizes
    return MixedArrays(Spans(starts, lengths), codes.astype(np.uint8), sides, edges)


def array_shapes(
    content: Bytes, spans: Spans, encoding: Encoding, *, wanted: ArrayType
) -> tuple[NDArray[np.int64], Spans]:
    """Return the shape of each array and the places of its elements.

    Args:
        content: The bytes that spans point into.
        spans: The values of the column.
        encoding: The encoding of the column.
        wanted: The common properties that all its arrays must have.

    Returns:
        ``(samples, axes) int64``, and the spans of the elements.

    Raises:
        DamageError: An array has another type, or its shape does not match its size.
    """
    assert wanted.dtype is not None
    assert wanted.axes is not None
    sizes = np.broadcast_to(np.asarray(spans.sizes, np.int64), spans.starts.shape)
    code_bytes = _code_bytes(encoding)
    refuse_first(
        sizes <= code_bytes, lambda at: f"an array of {sizes[at]} bytes found, expected its shape"
    )
    if code_bytes:
        codes = gather_numbers(content, spans.starts, _BYTE)
        code = _CODES[wanted.dtype]
        refuse_first(
            codes != code,
            lambda at: (
                f"an array has type {codes[at]}, but the arrays read when the dataset was opened "
                f"have {code}; open it with {_REMEDY}"
            ),
        )
    shape_bytes = gather_numbers(content, spans.starts + code_bytes, _BYTE)
    refuse_first(
        (shape_bytes >> 2) != wanted.axes,
        lambda at: (
            f"an array has {shape_bytes[at] >> 2} axes, but the arrays read when the dataset was "
            f"opened have {wanted.axes}; open it with {_REMEDY}"
        ),
    )
    widths = np.int64(1) << (shape_bytes & 3).astype(np.int64)
    heads = code_bytes + 1 + wanted.axes * widths
    refuse_first(
        sizes < heads,
        lambda at: f"an array of {sizes[at]} bytes found, but its header has {heads[at]}",
    )
    shapes = _sides(content, spans.starts + code_bytes + 1, widths, wanted.axes)
    elements = spans.without_head(heads)
    _check_shapes(shapes, sizes - heads, wanted.dtype.itemsize)
    return shapes.astype(np.int64), elements


def array_heads(
    shapes: NDArray[np.int64], dtype: np.dtype[Any] | None
) -> tuple[Bytes, NDArray[np.int64]]:
    """Return the header before the elements of each array.

    Args:
        shapes: ``(samples, axes)``, none negative.
        dtype: The dtype of the elements if each array should store it, else `None`.

    Returns:
        The headers of all arrays back to back, and the start of each, ``(samples + 1,) int64``.
    """
    count, axes = shapes.shape
    code_bytes = 0 if dtype is None else 1
    largest = shapes.max(axis=1, initial=0)
    powers = np.searchsorted(np.array([1 << 8, 1 << 16, 1 << 32]), largest, side="right")
    widths = np.int64(1) << powers.astype(np.int64)
    edges = np.zeros(count + 1, np.int64)
    np.cumsum(code_bytes + 1 + axes * widths, out=edges[1:])
    heads = np.zeros(int(edges[-1]), np.uint8)
    starts = edges[:-1]
    if dtype is not None:
        heads[starts] = _CODES[dtype]
    heads[starts + code_bytes] = axes << 2 | powers
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        for axis in range(axes):
            places = starts[chosen] + code_bytes + 1 + axis * width
            scatter_numbers(heads, places, shapes[chosen, axis].astype(f"<u{width}"))
    return heads, edges


def _code_bytes(encoding: Encoding) -> int:
    return 1 if encoding.dtype is None else 0


def _types(
    content: Bytes, spans: Spans, encoding: Encoding
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the type code and the number of axes of each array."""
    sizes = np.broadcast_to(np.asarray(spans.sizes, np.int64), spans.starts.shape)
    head = _code_bytes(encoding)
    refuse_first(
        sizes <= head,
        lambda at: f"an array of {sizes[at]} bytes found, expected its type and shape",
    )
    if encoding.dtype is None:
        codes = gather_numbers(content, spans.starts, _BYTE).astype(np.int64)
    else:
        codes = np.full(len(spans.starts), _CODES[encoding.dtype], np.int64)
    refuse_first(
        ~np.isin(codes, [*ARRAY_DTYPES]),
        lambda at: f"an array's type is {codes[at]}, expected one of {[*ARRAY_DTYPES]}",
    )
    axes = gather_numbers(content, spans.starts + head, _BYTE).astype(np.int64) >> 2
    refuse_first(
        (axes < 1) | (axes > MAX_AXES),
        lambda at: f"an array has {axes[at]} axes, expected 1 to {MAX_AXES}",
    )
    return codes, axes


def _sides(
    content: Bytes, starts: NDArray[np.int64], widths: NDArray[np.int64], axes: int
) -> NDArray[np.uint64]:
    """Read the shapes, whose integer width may differ by sample."""
    sides = np.zeros((starts.size, axes), np.uint64)
    for width in np.unique(widths):
        chosen = np.flatnonzero(widths == width)
        dtype = np.dtype(f"<u{width}")
        for axis in range(axes):
            sides[chosen, axis] = gather_numbers(content, starts[chosen] + axis * width, dtype)
    return sides


def _check_shapes(shapes: NDArray[np.uint64], found: NDArray[np.int64], item_bytes: int) -> None:
    # Floats do not overflow, and are exact for products that a real array can have.
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = shapes.astype(np.float64).prod(axis=1) * item_bytes
    refuse_first(
        (wanted != found) | (shapes > _MAX_SIDE).any(axis=1),
        lambda at: f"an array of shape {shapes[at].tolist()} has {found[at]} bytes of elements",
    )
