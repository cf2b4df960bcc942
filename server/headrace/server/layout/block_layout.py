"""How a decoded block lies in the arena.

A block has parts. Part 0 is a matrix of packed rows, one a sample: all narrow values, validity
bytes, and for each ragged value where its bytes begin in the arena and how many they are. Each wide
tensor column is a part of its own. The bytes of ragged columns follow, and only the packed rows
point at them. So one gather of part 0 finds all that is narrow, and each wide column needs one
gather more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.server.layout.wire_columns import WireColumn

# A tensor row of more bytes gets a part of its own. Up to there a gather of its own costs more, for
# what else is wanted of the sample lies in other cache lines then (4,096 rows of 160 bytes and a
# label: 140 us apart, 98 together).
WIDE_BYTES = 256

# Rows of up to this many bytes lie at multiples of their length, so that one `take` gathers them;
# longer rows lie anywhere and are copied one by one, which is faster for them anyway
# (measured: tests/benchmarks/bench_server.py) and wastes no space on alignment.
TAKE_BYTES = 4096

_SPAN_BYTES = 16
_ROW_ALIGNMENT = 8

# Longer packed rows begin at cache lines where that wastes little: 168 bytes then lie in 3 lines
# instead of 3 or 4 (4,096 of them: 98 us instead of 139).
_LINE = 64
_LEAST_LINES = 2
_MOST_WASTE = 6


@dataclass(frozen=True, slots=True)
class Field:
    """Where one column lies.

    Attributes:
        column: The column.
        part: Its part; 0 for packed rows.
        offset: Where its value, or its span, begins in a packed row; 0 in other parts.
        valid_offset: Where its validity byte lies in a packed row; -1 if it has none.
    """

    column: WireColumn
    part: int
    offset: int
    valid_offset: int


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One gathered part of a block.

    Attributes:
        row_bytes: Bytes of one row; 0 for packed rows of which nothing is needed.
        aligned: Whether a base counts rows from the beginning of the arena; else it counts bytes.
    """

    row_bytes: int
    aligned: bool

    @property
    def base_unit(self) -> int:
        """Return the bytes that a base counts in."""
        return self.row_bytes if self.aligned else 1


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where every column of a dataset lies in its blocks."""

    fields: tuple[Field, ...]
    parts: tuple[BlockPart, ...]
    by_name: dict[str, Field] = field(repr=False)

    @property
    def ragged(self) -> tuple[Field, ...]:
        """Return the columns whose bytes follow the parts, in order."""
        return tuple(entry for entry in self.fields if not entry.column.is_tensor)

    def size(self, sample_count: int, ragged_bytes: int) -> int:
        """Return the bytes that a block of that many samples may take, alignment included."""
        parts = sum(
            part.row_bytes * (sample_count + (1 if part.aligned else 0)) for part in self.parts
        )
        return parts + ragged_bytes


def block_layout(columns: Iterable[WireColumn]) -> BlockLayout:
    """Lay out the blocks of a dataset with these columns."""
    columns = tuple(columns)
    packed = [column for column in columns if not _is_wide(column)]
    # The widest alignment first, so that no value straddles its own alignment.
    packed.sort(key=lambda column: -_alignment(column))
    offsets: dict[str, int] = {}
    end = 0
    for column in packed:
        offsets[column.name] = end
        end += column.item_bytes if column.is_tensor else _SPAN_BYTES
    valid: dict[str, int] = {}
    for column in columns:
        if column.nullable:
            valid[column.name] = end
            end += 1
    parts = [BlockPart(_rounded(end), aligned=True)]
    fields = []
    for column in columns:
        part = 0
        if _is_wide(column):
            part = len(parts)
            parts.append(BlockPart(column.item_bytes, aligned=column.item_bytes <= TAKE_BYTES))
        fields.append(Field(column, part, offsets.get(column.name, 0), valid.get(column.name, -1)))
    by_name = {entry.column.name: entry for entry in fields}
    return BlockLayout(tuple(fields), tuple(parts), by_name)


@dataclass(frozen=True, slots=True)
class Projection:
    """What a stream needs of its dataset's blocks.

    Attributes:
        layout: How the blocks lie.
        fields: The wanted columns, in the order wanted, the server's own left out.
        packed: Whether any of them needs the packed rows.
        wide_parts: The other parts that they need.
    """

    layout: BlockLayout
    fields: tuple[Field, ...]
    packed: bool
    wide_parts: tuple[int, ...]


def projection_of(layout: BlockLayout, names: Sequence[str]) -> Projection:
    """Return what columns of these names need."""
    fields = tuple(layout.by_name[name] for name in names)
    return Projection(
        layout,
        fields,
        packed=any(entry.part == 0 or entry.valid_offset >= 0 for entry in fields),
        wide_parts=tuple(entry.part for entry in fields if entry.part),
    )


def _rounded(row_bytes: int) -> int:
    """Return the length of packed rows."""
    waste = -row_bytes % _LINE
    if row_bytes > _LEAST_LINES * _LINE and waste <= row_bytes // _MOST_WASTE:
        return row_bytes + waste
    return row_bytes + -row_bytes % _ROW_ALIGNMENT


def _is_wide(column: WireColumn) -> bool:
    return column.is_tensor and column.item_bytes > WIDE_BYTES


def _alignment(column: WireColumn) -> int:
    return column.dtype.itemsize if column.is_tensor else np.dtype(np.int64).itemsize
