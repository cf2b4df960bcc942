"""Present the blocks and rows of several datasets as those of one."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.demands_in_turn import DemandsInTurn
from headrace.server.cache.gather import BlockRows, Rows
from headrace.server.cache.joined_sources import JoinedSources, split_by
from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.readers import (
    DatasetBlocks,
    Lease,
    SourceParts,
    Waiter,
    lone_rows,
    rows_as_one,
)
from headrace.server.cache.source import ABSENT
from headrace.server.layout.block_layout import BlockLayout


@dataclass(frozen=True, slots=True)
class Translation:
    """How packed rows and wide parts of one layout are converted to another.

    Attributes:
        row_bytes: The size of a source row in bytes.
        is_same: Whether nothing has to change.
        copies: For each value: its place in a source row, its place in a target row, and its bytes.
        always_valid: The places of validity bytes in a target row that the source lacks.
        wide: The source part of each target part.
    """

    row_bytes: int
    is_same: bool
    copies: tuple[tuple[int, int, int], ...]
    always_valid: tuple[int, ...]
    wide: dict[int, int]


_SPAN_BYTES = 16


def translation(found: BlockLayout, wanted: BlockLayout) -> Translation:
    """Return how rows of one layout become those of another, which has no more columns."""
    copies: list[tuple[int, int, int]] = []
    always_valid: list[int] = []
    wide: dict[int, int] = {}
    for entry in wanted.fields:
        source = found.by_name[entry.column.name]
        if entry.part:
            wide[entry.part] = source.part
        else:
            size = entry.column.item_bytes if entry.column.is_tensor else _SPAN_BYTES
            copies.append((source.offset, entry.offset, size))
        if entry.valid_offset >= 0 and source.valid_offset >= 0:
            copies.append((source.valid_offset, entry.valid_offset, 1))
        elif entry.valid_offset >= 0:
            always_valid.append(entry.valid_offset)
    is_same = found.fields == wanted.fields and found.parts == wanted.parts
    return Translation(found.parts[0].row_bytes, is_same, tuple(copies), tuple(always_valid), wide)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    places: NDArray[np.intp]
    rows: Rows
    translation: Translation


class JoinedRows:
    """The samples of one batch in the pinned blocks of several datasets."""

    def __init__(self, pieces: Sequence[_Piece]) -> None:
        self._pieces = pieces

    @property
    def memory(self) -> Memory:
        """Return the arena, which all datasets share."""
        return self._pieces[0].rows.memory if self._pieces else Memory(np.empty(0, np.uint8))

    def packed(self, out: NDArray[np.uint8]) -> None:
        """Gather the packed rows into ``(samples, row_bytes) uint8``."""
        for piece in self._pieces:
            change = piece.translation
            scratch = np.empty((piece.places.size, change.row_bytes), np.uint8)
            piece.rows.packed(scratch)
            if change.is_same:
                out[piece.places] = scratch
                continue
            for source, target, size in change.copies:
                out[piece.places, target : target + size] = scratch[:, source : source + size]
            for target in change.always_valid:
                out[piece.places, target] = 1

    def wide(self, part: int, out: NDArray[np.uint8], *, first: int = 0) -> None:
        """Gather one part of the samples from ``first`` on into ``(n, row_bytes) uint8``."""
        for piece in self._pieces:
            start, end = np.searchsorted(piece.places, (first, first + len(out))).tolist()
            scratch = np.empty((end - start, out.shape[1]), np.uint8)
            piece.rows.wide(piece.translation.wide[part], scratch, first=start)
            out[piece.places[start:end] - first] = scratch


class JoinedBlocks:
    """The blocks of several datasets, numbered one dataset after the other, for one stream.

    A stream waits for the blocks of one dataset after the other; those of the others, which it
    requested ahead of need, arrive meanwhile.

    Args:
        parts: The blocks of each dataset.
        first_blocks: ``(datasets + 1,) int64``: where the numbers of each begin, and the last end.
        layout: The layout that rows should have.
    """

    def __init__(
        self, parts: Sequence[DatasetBlocks], first_blocks: NDArray[np.int64], layout: BlockLayout
    ) -> None:
        self._parts = parts
        self._firsts = first_blocks
        self._layout = layout
        self.cache = parts[0].cache
        self._joined = JoinedSources([part.source for part in parts], first_blocks)
        self._translations: dict[int, Translation] = {}
        # Datasets whose rows are known to have the target layout.
        self._lies_right = np.diff(first_blocks) == 0
        self._all_lie_right = False
        self._turns = DemandsInTurn(self.cache)

    @property
    def layout(self) -> BlockLayout:
        return self._layout

    def waiter(self, job: Hashable = None) -> Waiter:
        return self._parts[0].waiter(job)

    def leave(self, waiter: Waiter) -> None:
        self._parts[0].leave(waiter)

    def stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes = np.empty(blocks.size, np.int64)
        for index, places, own in split_by(self._firsts, blocks):
            sizes[places] = self._parts[index].stored_bytes(own)
        return sizes

    def is_cached(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        cached: NDArray[np.bool_] = self._joined.slots(blocks) > ABSENT
        return cached

    def lease(self, blocks: NDArray[np.int64]) -> AbstractContextManager[bool]:
        return Lease(self.cache.readers, self._joined, blocks)

    def prefetch(self, blocks: NDArray[np.int64], waiter: Waiter) -> NDArray[np.int64]:
        if self.cache.readers.will_read(self._joined, blocks, waiter):
            return blocks[:0]
        return self.cache.prefetch_joined(self._joined, blocks, waiter)

    def is_known(self, blocks: NDArray[np.int64]) -> NDArray[np.bool_]:
        known: NDArray[np.bool_] = self._joined.slots(blocks) != ABSENT
        return known

    def ask_ahead(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self._joined, blocks)
        self.cache.prefetch_joined(self._joined, blocks, waiter)

    def expect(self, blocks: NDArray[np.int64], waiter: Waiter, *, part: Hashable) -> None:
        waiter.expect(part, self._joined, blocks)

    def foresee(self, blocks: NDArray[np.int64], waiter: Waiter) -> None:
        waiter.foresee(self._joined, blocks)

    def demand(self, blocks: NDArray[np.int64], waiter: Waiter) -> AbstractContextManager[None]:
        return self._turns.demanded(
            (
                (self._parts[index].source, int(self._firsts[index]), own)
                for index, _, own in split_by(self._firsts, blocks)
            ),
            waiter,
        )

    def fit_together(self, blocks: NDArray[np.int64]) -> bool:
        del blocks  # they are waited for dataset by dataset
        return False

    def arrivals(self, waiter: Waiter, *, timeout_s: float) -> NDArray[np.int64]:
        return self._turns.arrivals(waiter, timeout_s=timeout_s)

    def rows(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> Rows:
        if blocks.size and self._lie_right(blocks):
            return self._as_one(blocks, offsets)
        pieces = [
            _Piece(places, self._parts[index].rows(own, offsets[places]), self._translation(index))
            for index, places, own in split_by(self._firsts, blocks)
        ]
        return JoinedRows(pieces)

    def _as_one(self, blocks: NDArray[np.int64], offsets: NDArray[np.int64]) -> BlockRows:
        """Return rows as if they were those of one dataset, with a block for each of them."""
        bases = self._joined.bases(blocks, len(self._layout.parts))
        return lone_rows(self._layout, self.cache.memory, bases, offsets)

    def rows_of(self, parts: SourceParts, offsets: NDArray[np.int64]) -> Rows:
        changes = [translation(source.layout, self._layout) for source, _, _ in parts]
        if all(change.is_same for change in changes):
            return rows_as_one(self._layout, self.cache.memory, parts, offsets)
        memory = self.cache.memory
        return JoinedRows(
            [
                _Piece(
                    places,
                    BlockRows(
                        found.layout, memory, found.slot_of, found.bases, own, offsets[places]
                    ),
                    change,
                )
                for (found, places, own), change in zip(parts, changes, strict=True)
            ]
        )

    def _lie_right(self, blocks: NDArray[np.int64]) -> bool:
        """Return whether the rows of the blocks have the target layout."""
        if self._all_lie_right:
            return True
        owners = np.searchsorted(self._firsts, blocks, side="right") - 1
        for index in np.unique(owners[~self._lies_right[owners]]).tolist():
            self._lies_right[index] = self._translation(index).is_same
        self._all_lie_right = bool(self._lies_right.all())
        return bool(self._lies_right[owners].all())

    def _translation(self, index: int) -> Translation:
        known = self._translations.get(index)
        if known is None:
            known = translation(self._parts[index].layout, self._layout)
            self._translations[index] = known
        return known
