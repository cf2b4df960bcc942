"""Verify stored blocks and write them into the arena, in compiled loops.

A block of the usual kind has no nulls, and is compressed with LZ4 or not at all. One call verifies
and expands all such blocks of a run, and another writes them, both without Python's lock. Decoding
with Arrow and writing with NumPy takes dozens of calls, whose code the processor's caches do not
keep from one block to the next (measured: docs/decisions/how-fast-cold-reads-are.md).

Any other block, even a damaged one, is decoded by `headrace.server.cache.decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from headrace.server.cache.memory.arena import Memory
from headrace.server.kernels.loader import LOOPS
from headrace.server.layout.block_layout import BlockLayout, Field
from headrace.storage import BlockPlace

_FIXED, _LISTS, _RAGGED, _TEXT = range(4)

# The most parts that the loops can write.
_MOST_PARTS = 4096


class StoredRun:
    """Blocks that were verified together, to be written into the arena.

    Args:
        form: The form of the blocks.
        stored: What was read.
        expanded: What was compressed.
        places: ``(blocks, 6) int64``: see ``stored.h``.
    """

    __slots__ = ("_contents", "_form", "_places")

    def __init__(
        self,
        form: StoredForm,
        stored: NDArray[np.uint8],
        expanded: NDArray[np.uint8],
        places: NDArray[np.int64],
    ) -> None:
        self._form = form
        self._contents = stored, expanded
        self._places = places

    def write(
        self, memory: Memory, rows: Sequence[int], extents: Sequence[tuple[int, int]]
    ) -> list[tuple[int, ...]]:
        """Write blocks as `DecodedBlock.write` does.

        Args:
            memory: The arena.
            rows: Which of the blocks.
            extents: Where each of them starts, and its size.

        Returns:
            The bases of the parts of each.
        """
        starts, sizes = np.array(extents, np.int64).T.copy()
        return self._form.write(self._contents, self._places[rows], memory, starts, sizes)


@dataclass(slots=True)
class StoredBlock:
    """A stored block that was verified.

    Attributes:
        run: It and others that were verified with it.
        row: Which of these it is.
        size: Bytes that it takes in the arena.
    """

    run: StoredRun
    row: int
    size: int


class StoredForm:
    """How the blocks of a dataset are stored, and how they lie in the arena.

    Args:
        loops: The compiled loops.
        layout: The layout in the arena.
        columns: ``(columns, 9) int64``: see ``stored.h``.
        counts: How many nodes and buffers a block has.
    """

    def __init__(
        self,
        loops: ModuleType,
        layout: BlockLayout,
        columns: NDArray[np.int64],
        counts: tuple[int, int],
    ) -> None:
        self._loops = loops
        self._layout = layout
        self._columns = columns
        self._counts = counts
        self._parts = np.array([(part.row_bytes, part.aligned) for part in layout.parts], np.int64)

    def verify(self, content: bytes, places: Sequence[BlockPlace]) -> list[StoredBlock | None]:
        """Verify the blocks of a range; None for those that must be decoded."""
        stored = np.frombuffer(content, np.uint8)
        start = places[0].offset
        table = np.array(
            [
                (
                    place.offset - start,
                    place.stored_bytes,
                    place.sample_count,
                    place.raw_bytes,
                    place.checksum,
                    0,
                )
                for place in places
            ],
            np.uint64,
        ).view(np.int64)
        found = np.empty(len(places), np.int64)
        expanded = self._loops.check_blocks(
            stored, table, self._columns, self._parts, *self._counts, found
        )
        run = StoredRun(self, stored, np.frombuffer(expanded, np.uint8), table)
        return [
            None
            if ragged_bytes < 0
            else StoredBlock(run, row, self._layout.size(place.sample_count, ragged_bytes))
            for row, (place, ragged_bytes) in enumerate(zip(places, found.tolist(), strict=True))
        ]

    def write(
        self,
        contents: tuple[NDArray[np.uint8], NDArray[np.uint8]],
        places: NDArray[np.int64],
        memory: Memory,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
    ) -> list[tuple[int, ...]]:
        """Write verified blocks, as `StoredRun.write` does."""
        bases = np.empty((len(places), len(self._parts)), np.int64)
        self._loops.write_blocks(
            *contents,
            places,
            self._columns,
            self._parts,
            *self._counts,
            memory.array,
            starts,
            sizes,
            bases,
        )
        return [tuple(each) for each in bases.tolist()]


def stored_form(schema: pa.Schema | None, layout: BlockLayout) -> StoredForm | None:
    """Return how stored blocks are verified and written; None if they must be decoded.

    Args:
        schema: The schema of stored blocks; None if they must be decoded.
        layout: The layout in the arena.
    """
    if schema is None or len(layout.parts) > _MOST_PARTS:
        return None
    columns: list[tuple[int, ...]] = []
    node = buffer = 0
    for stored in schema:
        kind = _plain(stored.type)
        counted = _counts(kind)
        if counted is None:
            return None
        entry = layout.by_name.get(stored.name)
        if entry is not None:
            column = _column(kind, entry, node, buffer)
            if column is None:
                return None
            columns.append(column)
        node, buffer = node + counted[0], buffer + counted[1]
    if len(columns) != len(layout.fields):
        return None
    order = {entry.column.name: place for place, entry in enumerate(layout.fields)}
    names = [stored.name for stored in schema if stored.name in layout.by_name]
    columns = [
        column for _, column in sorted(zip(map(order.__getitem__, names), columns, strict=True))
    ]
    return StoredForm(LOOPS, layout, np.array(columns, np.int64), (node, buffer))


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _counts(kind: pa.DataType) -> tuple[int, int] | None:
    """Return how many nodes and buffers a column of a type has; None if it is unknown."""
    if pat.is_primitive(kind) or pat.is_fixed_size_binary(kind):
        return 1, 2
    if pat.is_binary(kind) or pat.is_string(kind):
        return 1, 3
    if pat.is_list(kind) or pat.is_fixed_size_list(kind):
        inner = _counts(_plain(kind.value_type))
        own = 2 if pat.is_list(kind) else 1
        return None if inner is None else (1 + inner[0], own + inner[1])
    return None


def _column(kind: pa.DataType, entry: Field, node: int, buffer: int) -> tuple[int, ...] | None:
    """Return the row of ``columns`` for a column; None if it must be decoded."""
    column = entry.column
    place = (entry.part, entry.offset, entry.valid_offset)
    if not column.is_tensor:
        if pat.is_binary(kind) or pat.is_string(kind):
            form = _TEXT if pat.is_string(kind) else _RAGGED
            return (form, node, buffer + 1, buffer + 2, 1, 1, *place)
        if pat.is_list(kind) and _is_number(kind.value_type):
            return (_RAGGED, node, buffer + 1, buffer + 3, column.dtype.itemsize, 1, *place)
        return None
    if not column.item_bytes:
        return None
    if pat.is_list(kind) and _is_number(kind.value_type):
        items = column.item_bytes // column.dtype.itemsize
        return (_LISTS, node, buffer + 1, buffer + 3, column.item_bytes, items, *place)
    values = buffer + 1
    while pat.is_fixed_size_list(kind):
        values += 1
        kind = _plain(kind.value_type)
    return (_FIXED, node, 0, values, column.item_bytes, 1, *place) if _is_number(kind) else None


def _is_number(kind: pa.DataType) -> bool:
    """Return whether values lie in a buffer as they are sent; those of bool are bits."""
    return pat.is_integer(kind) or pat.is_floating(kind)
