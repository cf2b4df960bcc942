"""Where the buffers of a payload lie: pure arithmetic. docs/protocol.md is its specification."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.server.layout.wire_columns import WireColumn

# A cache line, and what Arrow asks for; a view of any dtype into the payload is aligned.
ALIGNMENT = 64
OFFSET_BYTES = 8


@dataclass(frozen=True, slots=True)
class PayloadLayout:
    """The buffers of one batch.

    Attributes:
        lengths: Bytes of each buffer: for each column in order [validity,] [offsets,] values.
        begins: Where each begins in the payload, at multiples of 64.
        size: Bytes of the payload: the end of its last buffer.
    """

    lengths: tuple[int, ...]
    begins: tuple[int, ...]
    size: int


def layout_of(
    columns: Sequence[WireColumn], sample_count: int, ragged_bytes: Sequence[int]
) -> PayloadLayout:
    """Lay out a batch.

    Args:
        columns: The columns in the order wanted.
        sample_count: Rows of the batch.
        ragged_bytes: Bytes of all values of each column that is no tensor, in the same order.
    """
    lengths: list[int] = []
    sizes = iter(ragged_bytes)
    for column in columns:
        if column.nullable:
            lengths.append(sample_count)
        if column.is_tensor:
            lengths.append(sample_count * column.item_bytes)
        else:
            lengths += ((sample_count + 1) * OFFSET_BYTES, next(sizes))
    begins: list[int] = []
    end = 0
    for length in lengths:
        begin = end + -end % ALIGNMENT
        begins.append(begin)
        end = begin + length
    return PayloadLayout(tuple(lengths), tuple(begins), end)
