"""Look up blocks of several datasets in the cache as if these were one dataset.

A batch of a mixture may have a sample of each of a thousand datasets. Dataset by dataset, the
lookups in the cache took 1 ms for such a batch, 20 times as long as a whole batch of one dataset.

Contract:

1. Blocks are numbered dataset after dataset. Each has the slot and the bases that the table of its
   dataset states at that moment.
2. A pinned block is found even if tables have grown since the stream started.
3. The tables stay in memory as long as this object does.

If the code differs, the code is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from headrace.server.cache.source import Source
from headrace.server.kernels.loader import LOOPS

# For each dataset: the addresses of its slots and bases, and the shape of the bases.
_PLACES = 4


def split_by(
    firsts: NDArray[np.int64], numbers: NDArray[np.int64]
) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64]]]:
    """Split numbers over several datasets by dataset.

    Args:
        firsts: ``(datasets + 1,) int64``: the first number of each dataset, and the end.
        numbers: ``(n,) int64`` in ``[0, firsts[-1])``.

    Yields:
        For each dataset with numbers: its index, the indices of its numbers in ``numbers``, and
        these numbers counted within the dataset, in their order.
    """
    if not numbers.size:
        return
    owners = np.searchsorted(firsts, numbers, side="right") - 1
    order = np.argsort(owners, kind="stable")
    sorted_owners, own = owners[order], numbers[order]
    edges = (np.flatnonzero(np.diff(sorted_owners)) + 1).tolist()
    for start, end in itertools.pairwise([0, *edges, numbers.size]):
        index = int(sorted_owners[start])
        yield index, order[start:end], own[start:end] - firsts[index]


class JoinedSources:
    """Several datasets of one cache; the contract is above.

    `slots` is thread-safe, `bases` is not.

    Attributes:
        slot_of: None, because each dataset has its own table.

    Args:
        sources: The datasets.
        first_blocks: ``(datasets + 1,) int64``: the number of each dataset's first block, and the
            end.
    """

    slot_of: NDArray[np.int32] | None = None

    def __init__(self, sources: Sequence[Source], first_blocks: NDArray[np.int64]) -> None:
        self._sources = tuple(sources)
        self._firsts = np.ascontiguousarray(first_blocks)
        self._bases: list[NDArray[np.int64] | None] = [None] * len(self._sources)
        self._places = np.zeros((len(self._sources), _PLACES), np.int64)
        self._places[:, 0] = [_address(source.slot_of) for source in self._sources]
        self._growths = tuple({id(each.growth): each.growth for each in self._sources}.values())
        self._seen = -1

    def slots(self, blocks: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the slot of each block, as `Source.slots` does."""
        slots = np.empty(blocks.size, np.int32)
        LOOPS.find_slots(self._places, self._firsts, _whole(blocks), slots)
        return slots

    def bases(self, blocks: NDArray[np.int64], part_count: int) -> NDArray[np.int64]:
        """Return the base of each part of pinned blocks: ``(parts, blocks) int64``.

        Args:
            blocks: ``(n,) int64``: the blocks, which must have at least ``part_count`` parts.
            part_count: The number of parts.
        """
        bases = np.empty((part_count, blocks.size), np.int64)
        self._look_at_growth()
        LOOPS.find_bases(self._places, self._firsts, _whole(blocks), bases)
        return bases

    def split(
        self, blocks: NDArray[np.int64]
    ) -> Iterator[tuple[Source, int, NDArray[np.intp], NDArray[np.int64]]]:
        """Split blocks by dataset, as `split_by` does.

        Yields:
            The dataset, the number of its first block, the indices of its blocks, and these blocks
            counted within the dataset.
        """
        for index, places, own in split_by(self._firsts, blocks):
            yield self._sources[index], int(self._firsts[index]), places, own

    def ask(
        self,
        blocks: NDArray[np.int64],
        ask_one: Callable[[Source, NDArray[np.int64]], NDArray[np.int64]],
    ) -> NDArray[np.int64]:
        """Ask each dataset for its own blocks.

        Args:
            blocks: ``(n,) int64``.
            ask_one: Takes a dataset and its blocks, and returns some of them.

        Returns:
            The returned blocks of all datasets, with their numbers here.
        """
        found = [blocks[:0]]
        for source, first, _, own in self.split(blocks):
            found.append(ask_one(source, own) + first)
        return np.concatenate(found)

    def _look_at_growth(self) -> None:
        """Update the addresses of bases if a table has grown."""
        # The bases of a pinned block were written, and counted, before its slot became visible.
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
