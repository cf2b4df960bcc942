"""The tables of several datasets in the cache, looked up as one.

A batch of a mixture may have a sample of each of a thousand datasets. Dataset by dataset, what is
asked of the cache took 1 ms of such a batch, 20 times what all of a batch of one dataset takes.

Contract:

1. Blocks are numbered one dataset after the other; each has the slot and the bases that the table
   of its own dataset says at that moment.
2. A block that is pinned is found where it lies, however the tables have grown since the stream
   began.
3. The tables stay in memory as long as this does.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.source import Source
from headrace.server.kernels.loader import LOOPS

# Of each dataset: where its slots and its bases lie, and the shape of the bases.
_PLACES = 4


def split_by(
    firsts: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64]]]:
    """Tell numbers that were laid end to end apart again.

    Args:
        firsts: ``(datasets + 1,) int64``: where the numbers of each begin, and the last end.
        numbers: ``(n,) int64`` in ``[0, firsts[-1])``.

    Yields:
        For each dataset that has any: its index, the places of its numbers, and these as they
        are in the dataset, in the order in which they stand.
    """
    if not numbers.size:
        return
    owners = np.searchsorted(firsts, numbers, side="right") - 1
    order = np.argsort(owners, kind="stable")
    sorted_owners, own = owners[order], numbers[order]
    edges = (np.flatnonzero(np.diff(sorted_owners)) + 1).tolist()
    for begin, end in itertools.pairwise([0, *edges, numbers.size]):
        index = int(sorted_owners[begin])
        yield index, order[begin:end], own[begin:end] - firsts[index]


class JoinedSources:
    """Several datasets of one cache; the contract is above.

    `slots` is safe for several threads, `bases` is not.

    Args:
        sources: The datasets.
        first_blocks: ``(datasets + 1,) int64``: where the numbers of each begin, and the last end.
        kernels: The compiled loops, where there are any.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        first_blocks: NDArray[np.int64],
        *,
        kernels: ModuleType | None = LOOPS,
    ) -> None:
        self._sources = tuple(sources)
        self._firsts = np.ascontiguousarray(first_blocks)
        self._kernels = kernels
        self._bases: list[NDArray[np.int64] | None] = [None] * len(self._sources)
        self._places = np.zeros((len(self._sources), _PLACES), np.int64)
        self._places[:, 0] = [_address(source.slot_of) for source in self._sources]
        self._growths = tuple({id(each.growth): each.growth for each in self._sources}.values())
        self._seen = -1

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block, as `Source.slots`."""
        slots = np.empty(blocks.size, np.int32)
        if self._kernels is not None:
            self._kernels.find_slots(self._places, self._firsts, _whole(blocks), slots)
            return slots
        for source, _, places, own in self.split(blocks):
            slots[places] = source.slot_of[own]
        return slots

    def bases(self, blocks: NDArray[np.int64], part_count: int) -> NDArray[np.int64]:
        """Return where each part of some pinned blocks begins: ``(parts, blocks) int64``.

        Args:
            blocks: ``(n,) int64``; all of them have that many parts, or more.
            part_count: The parts.
        """
        bases = np.empty((part_count, blocks.size), np.int64)
        if self._kernels is not None:
            self._look_at_growth()
            self._kernels.find_bases(self._places, self._firsts, _whole(blocks), bases)
            return bases
        for source, _, places, own in self.split(blocks):
            bases[:, places] = source.bases[:part_count, source.slot_of[own]]
        return bases

    def split(
        self, blocks: NDArray[np.int64]
    ) -> Iterator[tuple[Source, int, NDArray[np.intp], NDArray[np.int64]]]:
        """Yield for each dataset that has some of the blocks what `split_by` does.

        Yields:
            The dataset, the number of its first block, the places of its blocks, and these as they
            are in the dataset.
        """
        for index, places, own in split_by(self._firsts, blocks):
            yield self._sources[index], int(self._firsts[index]), places, own

    def ask(
        self,
        blocks: NDArray[np.int64],
        ask_one: Callable[[Source, NDArray[np.int64]], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Ask each dataset for those of the blocks that are its own.

        Args:
            blocks: ``(n,) int64``.
            ask_one: Takes a dataset and its blocks, and returns some of these.

        Returns:
            What it returned, by the numbers that blocks have here.
        """
        found = [blocks[:0]]
        for source, first, _, own in self.split(blocks):
            found.append(ask_one(source, own) + first)
        return np.concatenate(found)

    def _look_at_growth(self) -> None:
        """Note where the bases lie now, if any have been made again."""
        # What a pinned block needs was written, and counted, before its slot could be seen.
        seen = sum([growth.times for growth in self._growths])
        if seen == self._seen:
            return
        for index, (source, held) in enumerate(zip(self._sources, self._bases, strict=True)):
            bases = source.bases
            if bases is not held:
                self._bases[index] = bases
                self._places[index, 1:] = _address(bases), *bases.shape
        self._seen = seen


def _address(table: NDArray[np.int32] | NDArray[np.int64]) -> int:
    assert table.flags.c_contiguous
    return int(table.__array_interface__["data"][0])


def _whole(blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(blocks)
