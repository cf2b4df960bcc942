"""The layout of decoded blocks in the arena.

A block has parts. Part 0 is a matrix of packed rows, one for each sample. A packed row holds all
narrow values, validity bytes, and the start and length in the arena of each ragged value. Each wide
tensor column is a separate part. The bytes of ragged columns follow, and only packed rows point at
them. So one gather of part 0 finds all narrow values, and each wide column needs one more gather.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from headrace.server.layout.wire_columns import WireColumn

# Wider tensor rows get a separate part. For narrower ones a separate gather costs more, because the
# sample's other values lie in other cache lines then (4,096 rows of 160 bytes and a label: 140 us
# apart, 98 us together).
WIDE_BYTES = 256

# Rows of up to this many bytes lie at multiples of their length, so that one `take` gathers them.
# Longer rows lie anywhere and are copied one by one, which is faster for them (measured:
# tests/benchmarks/bench_server.py) and needs no alignment.
TAKE_BYTES = 4096

_SPAN_BYTES = 16
# Blocks lie at multiples of this in the arena.
_GRAIN_BYTES = 64
# Raw bytes of a ragged value count one offset of Arrow, mostly of this size.
_OFFSET_BYTES = 4
_ROW_ALIGNMENT = 8

# Longer packed rows start at cache lines if that wastes little space: 168 bytes then lie in 3 lines
# instead of 3 or 4 (4,096 of them take 98 us instead of 139).
_LINE = 64
_LEAST_LINES = 2
_MOST_WASTE = 6


@dataclass(frozen=True, slots=True)
class Field:
    """The place of one column in a block.

    Attributes:
        column: The column.
        part: The number of its part; 0 for packed rows.
        offset: Where its value or span starts in a packed row; 0 in other parts.
        valid_offset: The place of its validity byte in a packed row; -1 if it has none.
    """

    column: WireColumn
    part: int
    offset: int
    valid_offset: int


@dataclass(frozen=True, slots=True)
class BlockPart:
    """One gathered part of a block.

    Attributes:
        row_bytes: Bytes of one row; 0 for packed rows that nothing needs.
        aligned: Whether bases count rows from the beginning of the arena, and not bytes.
    """

    row_bytes: int
    aligned: bool


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The places of all columns of a dataset in its blocks."""

    fields: tuple[Field, ...]
    parts: tuple[BlockPart, ...]
    by_name: dict[str, Field] = field(repr=False)

    @property
    def ragged(self) -> tuple[Field, ...]:
        """The columns whose bytes follow the parts, in order."""
        return tuple(entry for entry in self.fields if not entry.column.is_tensor)

    def projection(self, names: Iterable[str]) -> Projection:
        """Return the columns of some names."""
        return Projection(self, tuple(self.by_name[name] for name in names))

    def memory_bytes(self, sample_count: int, raw_bytes: int, *, block_count: int = 1) -> int:
        """Return what samples of so many raw bytes take in memory, in blocks of one dataset."""
        values = [
            entry.column.item_bytes if entry.column.is_tensor else _OFFSET_BYTES
            for entry in self.fields
        ]
        ragged_bytes = max(0, raw_bytes - sample_count * sum(values))
        # As `size` counts them, each with what it is rounded up to on average.
        aligned = sum(part.row_bytes for part in self.parts if part.aligned) + _GRAIN_BYTES // 2
        row_bytes = sum(part.row_bytes for part in self.parts)
        return sample_count * row_bytes + ragged_bytes + block_count * aligned

    def size(self, sample_count: int, ragged_bytes: int) -> int:
        """Return the most bytes that a block with these contents takes, including alignment."""
        parts = sum(
            part.row_bytes * (sample_count + (1 if part.aligned else 0)) for part in self.parts
        )
        return parts + ragged_bytes


def block_layout(columns: Iterable[WireColumn]) -> BlockLayout:
    """Lay out the blocks of a dataset with these columns."""
    columns = tuple(columns)
    packed = [column for column in columns if not _is_wide(column)]
    # The widest alignment first, so that every value is aligned.
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
    """The columns that a stream needs of its dataset's blocks.

    Attributes:
        layout: The layout of the blocks.
        fields: The requested columns, in the requested order, without the server's own.
    """

    layout: BlockLayout
    fields: tuple[Field, ...]

    @property
    def packed(self) -> bool:
        """Whether any of these columns needs the packed rows."""
        return any(entry.part == 0 or entry.valid_offset >= 0 for entry in self.fields)

    @property
    def wide_parts(self) -> tuple[int, ...]:
        """The other parts that these columns need."""
        return tuple(entry.part for entry in self.fields if entry.part)


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
