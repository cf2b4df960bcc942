"""Read blocks of files that other programs wrote, once more if they are damaged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.storage.source.ordinals import checked_ordinals, starts_of
from headrace.storage.source.prefix_search import Search, Starts, search_starts
from headrace.storage.store.store import Store


class FileBlocks(ABC):
    """The common part of datasets of such files. Safe to use from several threads.

    Args:
        files: The store of the files; closed by `close`.
        block_samples: ``(blocks,)``: the number of samples in each block.

    Attributes:
        url: The URL of the files; the folder, if the dataset is a single file.
        sample_count: The number of samples.
        block_count: The number of blocks with samples.
    """

    def __init__(self, files: Store, block_samples: NDArray[np.int64]) -> None:
        self.url = files.url
        self.block_count = len(block_samples)
        self._files = files
        self._starts = Starts(starts_of(block_samples))
        self.sample_count = int(self._starts.values[-1])

    @abstractmethod
    def _read_once(self, block: int) -> pa.RecordBatch:
        """Read, verify and decode a block that exists."""

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the blocks of samples, without reading anything.

        Args:
            sample_ids: ``(n,)`` in ``[0, sample_count)``, in any order, repeats allowed.
            search: A faster replacement for `search_starts`, if there is one.

        Returns:
            Block ordinals and offsets of the samples in their blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside its range.
        """
        ids = checked_ordinals(sample_ids, self.sample_count, "sample id")
        return search(self._starts, ids)

    def block_first_samples(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the id of the first sample of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        firsts: NDArray[np.int64] = self._starts.values[self._checked(blocks)]
        return firsts

    def block_sample_range(self, block: int) -> tuple[int, int]:
        """Return the sample ids ``[first, last)`` of a block.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
        """
        self._checked(np.array([block]))
        return int(self._starts.values[block]), int(self._starts.values[block + 1])

    def read_block(self, block: int) -> pa.RecordBatch:
        """Read one block, usually in one ranged read, and verify it as far as its format allows.

        A block that fails is read once more, in case it was damaged in transit.

        Args:
            block: In ``[0, block_count)``.

        Returns:
            Its samples, with the dataset's schema.

        Raises:
            ShardCorruptError: It was damaged twice, or the file has changed; names the file and the
                byte.
            UnsupportedColumnError: A value does not fit the type of its column.
            ObjectNotFoundError: The file is missing.
            StoreUnavailableError: The store cannot be reached.
        """
        self._checked(np.array([block]))
        try:
            return self._read_once(block)
        except ShardCorruptError:
            return self._read_once(block)

    def close(self) -> None:
        """Close the connections; the dataset cannot be read afterwards."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _checked(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return checked_ordinals(blocks, self.block_count, "block")
