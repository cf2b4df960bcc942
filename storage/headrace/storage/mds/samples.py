"""Find the values of many samples in a shard, for all samples at once.

Source: the layout is that of mosaicml-streaming 0.13.0; docs/mds.md describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.storage.mds.damage import DamageError

Bytes: TypeAlias = NDArray[np.uint8]
WORD = np.dtype("<u4")
_Count = TypeVar("_Count", int, NDArray[np.int64])
MAX_SHARD_BYTES = 2**32 - 1  # offsets have 32 bits


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """The places of one column's values: value i is ``content[starts[i]:][:sizes[i]]``.

    Attributes:
        starts: ``(samples,) int64``, ascending.
        sizes: ``(samples,) int64``, or one number if all are equal.
    """

    starts: NDArray[np.int64]
    sizes: NDArray[np.int64] | int

    @property
    def ends(self) -> NDArray[np.int64]:
        """``(samples,) int64``."""
        ends: NDArray[np.int64] = self.starts + self.sizes
        return ends

    def without_head(self, head: NDArray[np.int64]) -> Spans:
        """Return the spans that remain after ``(samples,)`` bytes of each."""
        return Spans(self.starts + head, self.sizes - head)


def header_bytes(sample_count: _Count) -> _Count:
    """Return the length of a shard's header, or of several: the count and all offsets."""
    return WORD.itemsize * (sample_count + 2)


def decode_offsets(words: bytes | Bytes, *, low: int, high: int) -> NDArray[np.int64]:
    """Return offsets of samples, checked.

    Args:
        words: The words of the header; the last is the end of the last sample.
        low: The first possible byte of a sample.
        high: Size of the file.

    Returns:
        ``(samples + 1,) int64``, ascending, in ``[low, high]``.

    Raises:
        DamageError: An offset is outside, or smaller than the previous one.
    """
    offsets = np.frombuffer(words, WORD).astype(np.int64)
    if offsets[0] < low:
        raise DamageError(f"the first offset is {offsets[0]}, inside the header of {low} bytes", 0)
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if falls.size:
        at = int(falls[0])
        raise DamageError(f"its offset is {offsets[at]}, but the next one is {offsets[at + 1]}", at)
    if offsets[-1] > high:
        at = int(np.searchsorted(offsets, high, side="right"))
        raise DamageError(
            f"an offset is {offsets[at]}, but the file has {high} bytes", max(0, at - 1)
        )
    return offsets


def value_spans(
    content: Bytes, offsets: NDArray[np.int64], sizes: Sequence[int | None]
) -> list[Spans]:
    """Find the values of every column in every sample.

    Args:
        content: The bytes of the samples.
        offsets: ``(samples + 1,)`` into ``content``, ascending, inside it.
        sizes: The sizes of each column's values, or `None` if samples store them.

    Raises:
        DamageError: A sample's sizes do not add up to its length.
    """
    starts, ends = offsets[:-1], offsets[1:]
    varying = sum(size is None for size in sizes)
    values = starts + WORD.itemsize * varying
    refuse_first(
        values > ends,
        lambda at: (
            f"{ends[at] - starts[at]} bytes found, {WORD.itemsize * varying} of sizes expected"
        ),
    )
    spans = []
    words = starts
    for size in sizes:
        if size is None:
            stated = gather_numbers(content, words, WORD).astype(np.int64)
            spans.append(Spans(values, stated))
            words = words + WORD.itemsize
        else:
            spans.append(Spans(values, size))
        values = spans[-1].ends
    refuse_first(
        values != ends,
        lambda at: (
            f"its columns need {values[at] - starts[at]} bytes, but it has {ends[at] - starts[at]}"
        ),
    )
    return spans


def gather_numbers(content: Bytes, starts: NDArray[np.int64], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the numbers at ``starts``, in any alignment; ``(samples,)`` of ``dtype``.

    Args:
        content: The bytes, with ``dtype.itemsize`` bytes at each of ``starts``.
        starts: ``(samples,)``.
        dtype: The dtype of the numbers.
    """
    if not starts.size:
        return np.empty(0, dtype)
    places = content.size - dtype.itemsize + 1
    every: NDArray[Any] = np.ndarray((places,), dtype, content, strides=(1,))
    return every[starts]


def scatter_numbers(content: Bytes, starts: NDArray[np.int64], numbers: NDArray[Any]) -> None:
    """Write ``numbers`` at ``starts``, in any alignment; they must not overlap."""
    if starts.size:
        places = content.size - numbers.itemsize + 1
        every: NDArray[Any] = np.ndarray((places,), numbers.dtype, content, strides=(1,))
        every[starts] = numbers


def refuse_first(is_bad: NDArray[np.bool_], found: Callable[[int], str]) -> None:
    """Raise for the first sample that is bad.

    Args:
        is_bad: ``(samples,)``.
        found: Returns what was found in that sample.

    Raises:
        DamageError: A sample is bad.
    """
    if is_bad.any():
        at = int(is_bad.argmax())
        raise DamageError(found(at), at)
