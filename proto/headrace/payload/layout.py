"""Where the buffers of a payload lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

ALIGNMENT = 64
"""Bytes: a cache line, and what Arrow recommends. Views of any dtype into a payload are aligned."""

OFFSET_BYTES = 8
"""Bytes of each offset, an int64."""


class PayloadColumn(Protocol):
    """The properties of a column that determine its buffers."""

    @property
    def is_tensor(self) -> bool:
        """Whether every row has the same shape."""

    @property
    def item_bytes(self) -> int:
        """Bytes of one row of a tensor."""

    @property
    def nullable(self) -> bool:
        """Whether a validity buffer, one byte a row, comes before the others."""


@dataclass(frozen=True, slots=True)
class PayloadLayout:
    """The buffers of one batch.

    Attributes:
        lengths: Bytes of each buffer: [validity,] [offsets,] values of each column in turn.
        starts: Where each buffer starts in the payload, at a multiple of `ALIGNMENT`.
        size: Bytes of the payload, up to the end of its last buffer.
    """

    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    size: int


def layout_of(
    columns: Iterable[PayloadColumn], row_count: int, ragged_bytes: Iterable[int]
) -> PayloadLayout:
    """Lay out a batch.

    Args:
        columns: The columns, in the order of the payload.
        row_count: Rows of the batch.
        ragged_bytes: Bytes of the values of each column that is not a tensor, in the same order.
    """
    lengths: list[int] = []
    sizes = iter(ragged_bytes)
    for column in columns:
        if column.nullable:
            lengths.append(row_count)
        if column.is_tensor:
            lengths.append(row_count * column.item_bytes)
        else:
            lengths += ((row_count + 1) * OFFSET_BYTES, next(sizes))
    starts, size = place_buffers(lengths)
    return PayloadLayout(tuple(lengths), tuple(starts), size)


def place_buffers(lengths: Sequence[int]) -> tuple[list[int], int]:
    """Return where buffers of these lengths, in bytes, start, and where the last one ends."""
    starts: list[int] = []
    end = 0
    for length in lengths:
        start = aligned(end)
        starts.append(start)
        end = start + length
    return starts, end


def aligned(end: int) -> int:
    """Return where a buffer starts if the one before it ends at ``end``."""
    return end + -end % ALIGNMENT
