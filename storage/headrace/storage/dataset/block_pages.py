"""The block table of an open dataset: pages are read on demand, and a bounded number is kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import TableFile
from headrace.storage.dataset.read_manifest import page_row_count
from headrace.storage.shard.block_table import PAGE_BLOCKS, decode_page
from headrace.storage.source.ordinals import starts_of
from headrace.storage.source.prefix_search import Search, Starts
from headrace.storage.store.store import Store

_CACHE_PAGES = 512  # of 180 kB each: at most 90 MB, for datasets of 2 million blocks or more


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """Rows ``[first_block, first_block + len(rows))`` of the block table.

    Attributes:
        first_block: Ordinal of the first row.
        rows: An array of `BLOCK_DTYPE`.
        starts: ``(rows + 1,) int64``: the first sample id of each row's block, and the id after
            the last.
    """

    first_block: int
    rows: NDArray[np.void]
    starts: Starts

    def locate(
        self, sample_ids: NDArray[np.int64], search: Search
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the block of each sample in this page, and its offset there: ``(n,) int64``."""
        rows, offsets = search(self.starts, sample_ids)
        rows += self.first_block
        return rows, offsets

    def sample_range(self, row: int) -> tuple[int, int]:
        """Return the sample ids ``[first, last)`` of the block of a row."""
        first, last = self.starts.values[row : row + 2].tolist()
        return first, last


class BlockTable:
    """The block table of one manifest; thread-safe."""

    def __init__(self, store: Store, table: TableFile, *, manifest: Manifest) -> None:
        self._store = store
        self._table = table
        self._manifest = manifest
        self._shard_samples = starts_of(manifest.sample_counts)
        self._shard_blocks = starts_of(manifest.block_counts)
        self._pages: LruCache[int, Page] = LruCache(_CACHE_PAGES)

    def page(self, index: int) -> Page:
        """Return page ``index``, in ``[0, pages)``.

        Raises:
            ManifestCorruptError: The page was read twice, and did not match the shard table.
        """
        return self._pages.get(index, lambda: self._read(index))

    def _read(self, index: int) -> Page:
        try:
            return self._read_once(index)
        except ManifestCorruptError:
            # Read twice, as blocks are, in case it was damaged in transit.
            return self._read_once(index)

    def _read_once(self, index: int) -> Page:
        entry = self._manifest.pages[index]
        place = f"{self._store.url}/{self._table.name}"
        try:
            message = self._store.read(
                self._table.name, offset=entry.offset, length=entry.stored_bytes
            )
        except ObjectNotFoundError as error:
            raise ManifestCorruptError(f"{place} is missing", place=place) from error
        row_count = page_row_count(index, self._manifest.block_count)
        rows = decode_page(message, entry, row_count=row_count, place=place)
        samples = rows["sample_count"].astype(np.int64)
        page = Page(
            first_block=index * PAGE_BLOCKS,
            rows=rows,
            starts=Starts(entry.first_sample + starts_of(samples)),
        )
        self._check(page, place)
        return page

    def _check(self, page: Page, place: str) -> None:
        """Refuse rows that contradict the shard table or each other."""
        stop = page.first_block + len(page.rows)
        inside = slice(*np.searchsorted(self._shard_blocks, [page.first_block, stop + 1]))
        found = page.starts.values[self._shard_blocks[inside] - page.first_block]
        ends = page.rows["offset"] + page.rows["stored_bytes"]
        blocks = np.arange(page.first_block, stop)
        shards = np.searchsorted(self._shard_blocks, blocks, side="right") - 1
        same = shards[1:] == shards[:-1]
        problems = {
            "sample counts of blocks and shards differ": bool(
                np.any(found != self._shard_samples[inside])
            ),
            "sample counts of blocks differ from their shard's block_samples": self._are_uneven(
                page
            ),
            "a block without samples": bool(np.any(page.rows["sample_count"] < 1)),
            "a block with a negative offset": bool(
                np.any((page.rows["offset"] < 0) | (page.rows["stored_bytes"] < 1))
            ),
            "a block past the end of its shard": bool(
                np.any(ends > self._manifest.stored_bytes[shards])
            ),
            "blocks that overlap": bool(np.any(same & (page.rows["offset"][1:] < ends[:-1]))),
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ManifestCorruptError(
                    f"block table {place}, rows {page.first_block} to {stop - 1}: {problem}; "
                    "restore it or convert the data again",
                    place=place,
                )

    def _are_uneven(self, page: Page) -> bool:
        """Return whether a block that is not its shard's last differs from the stated size."""
        blocks = np.arange(page.first_block, page.first_block + len(page.rows))
        shards = np.searchsorted(self._shard_blocks, blocks, side="right") - 1
        stated = self._manifest.block_samples[shards]
        is_last = blocks + 1 == self._shard_blocks[shards + 1]
        differs = page.rows["sample_count"] != stated
        return bool(np.any(differs & ~is_last & (stated > 0)))
