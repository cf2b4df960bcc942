"""One version of a dataset of our own shards, open for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import (
    BadArgumentError,
    ShardCorruptError,
)
from headrace.storage.dataset.block_pages import BlockTable, Page
from headrace.storage.dataset.coalesced_reads import (
    MAX_RANGE_BYTES,
    BlockAccess,
    ReadBlock,
    VerifiedBlocks,
    Verify,
)
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import VersionEntry
from headrace.storage.shard.block import BlockPlace, decode_block
from headrace.storage.shard.block_table import PAGE_BLOCKS
from headrace.storage.shard.column_facts import Narrowing
from headrace.storage.shard.decoder import BlockDecoder
from headrace.storage.shard.file_frame import frame_problem
from headrace.storage.shard.shard_writer import SHARD_FOLDER
from headrace.storage.source.ordinals import checked_ordinals, read_only
from headrace.storage.source.prefix_search import Search, Starts, search_starts
from headrace.storage.source.source import ShardCheck
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.store import Store

_T = TypeVar("_T")


class Dataset:
    """A version of a dataset; thread-safe.

    Attributes:
        url: The URL of the dataset.
        fingerprint: 32 hexadecimal digits that identify the content.
        schema: The columns of every batch.
        sample_count: Number of samples.
        shard_count: Number of shards.
        block_count: Number of blocks.
        raw_bytes: Raw bytes of the samples.
        stored_bytes: Stored bytes of the shards.
        shard_sample_counts: ``(shards,) int64``: samples of each shard; do not change it.
        shard_raw_bytes: ``(shards,) int64``: raw bytes of each shard; do not change it.
    """

    def __init__(self, store: Store, entry: VersionEntry, *, manifest: Manifest) -> None:
        self.url = store.url
        self.fingerprint = manifest.fingerprint
        self.schema = manifest.schema
        self.sample_count = manifest.sample_count
        self.shard_count = manifest.shard_count
        self.block_count = manifest.block_count
        self.raw_bytes = int(manifest.raw_bytes.sum())
        self.stored_bytes = int(manifest.stored_bytes.sum())
        self.shard_sample_counts = read_only(manifest.sample_counts)
        self.shard_raw_bytes = read_only(manifest.raw_bytes)
        self._store = store
        self._manifest = manifest
        self._narrowing = Narrowing(stored=manifest.stored_schema, served=manifest.schema)
        self._decoder = BlockDecoder(self._narrowing.decoded)
        self._table = BlockTable(store, entry.blocks, manifest=manifest)
        self._access = BlockAccess(
            read=lambda shard, offset, length: store.read(shard, offset=offset, length=length),
            decode=self._decoded,
            read_alone=self._read_alone,
        )
        self._shard_block_ends = np.cumsum(manifest.block_counts)
        page_starts = [page.first_sample for page in manifest.pages]
        self._page_starts = Starts(np.array([*page_starts, self.sample_count], np.int64))

    def stretches(self) -> Stretches:
        """Return its shards; see `OpenDataset.stretches`."""
        return Stretches(
            self.shard_sample_counts, self.shard_raw_bytes, read_only(self._manifest.block_samples)
        )

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the blocks of samples.

        Args:
            sample_ids: ``(n,)`` in ``[0, sample_count)``, in any order, repeats allowed.
            search: A faster replacement for `search_starts`, if there is one.

        Returns:
            Block ordinals and offsets of the samples in their blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside its range.
            ManifestCorruptError: A page of the block table is damaged.
        """
        ids = checked_ordinals(sample_ids, self.sample_count, "sample id")
        if len(self._page_starts.values) == 2:  # noqa: PLR2004 - one page and its end
            return self._table.page(0).locate(ids, search)
        blocks = np.empty(len(ids), np.int64)
        offsets = np.empty(len(ids), np.int64)
        for page, chosen in self._by_page(self._page_starts.find(ids)):
            blocks[chosen], offsets[chosen] = page.locate(ids[chosen], search)
        return blocks, offsets

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored bytes of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._block_column(blocks, "stored_bytes")

    def block_raw_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the raw bytes of the samples of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._block_column(blocks, "raw_bytes")

    def block_checksums(self, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the XXH3-64 of each block's stored bytes, ``(n,) uint64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._block_column(blocks, "checksum").view(np.uint64)

    def block_first_samples(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the id of the first sample of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        ordinals = checked_ordinals(blocks, self.block_count, "block")
        firsts = np.empty(len(ordinals), np.int64)
        for page, chosen in self._by_page(ordinals // PAGE_BLOCKS):
            firsts[chosen] = page.starts.values[ordinals[chosen] - page.first_block]
        return firsts

    def block_sample_range(self, block: int) -> tuple[int, int]:
        """Return the sample ids ``[first, last)`` of a block.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
        """
        page, row = self._row(block)
        return page.sample_range(row)

    def block_place(self, block: int) -> BlockPlace:
        """Return the shard of a block, the block's place in it, and its checksum.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
        """
        return next(self._places([block]))

    def read_block(self, block: int) -> pa.RecordBatch:
        """Read one block with one ranged read, and verify it before it is decoded.

        A block that does not match the manifest is read once more, in case it was damaged on the
        way.

        Args:
            block: In ``[0, block_count)``.

        Returns:
            The samples of the block, with the dataset's schema.

        Raises:
            ShardCorruptError: The block did not match either time; the message names shard, block
                and byte offset.
            ObjectNotFoundError: The shard is gone.
            StoreUnavailableError: The store cannot be reached.
        """
        return self.read_stored(block)[1]

    def read_stored(self, block: int) -> tuple[bytes, pa.RecordBatch]:
        """Read one block as `read_block` does, and return its stored bytes too.

        Raises:
            HeadraceError: See `read_block`.
        """
        return self._read_alone(self.block_place(block))

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read with one request, >= 1.

        Args:
            max_bytes: The most stored bytes that they should have together.
        """
        mean_bytes = max(1, self.stored_bytes // max(1, self.block_count))
        return max(1, min(max_bytes, MAX_RANGE_BYTES) // mean_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks as `read_stored` does, neighbours with one request.

        Args:
            blocks: Ordinals in rising order.

        Yields:
            Each block, in that order, or its error.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
            ManifestCorruptError: A page of the block table is damaged.
        """
        return self._access.read_run(list(self._places(blocks)))

    @property
    def block_schema(self) -> pa.Schema:
        """The schema of stored blocks, whose types may be wider than those of the dataset's."""
        return self._narrowing.decoded

    def read_verified(
        self, blocks: Sequence[int], verify: Verify[_T]
    ) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
        """Read blocks as `read_run` does, but decode only those that ``verify`` does not take.

        Raises:
            HeadraceError: See `read_run`.
        """
        return self._access.read_verified(list(self._places(blocks)), verify)

    def decode_stored(self, block: int, stored: bytes) -> pa.RecordBatch:
        """Verify and decode the stored bytes of a block, from an earlier `read_stored`.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
            ShardCorruptError: The bytes do not match the manifest.
        """
        return self._decoded(stored, self.block_place(block))

    def check_shard(self, shard: int) -> ShardCheck:
        """Compare size, header and footer of a shard with the manifest; all blocks have checksums.

        Raises:
            HeadraceError: See `OpenDataset.check_shard`.
        """
        end = int(self._shard_block_ends[shard])
        count = int(self._manifest.block_counts[shard])
        rows = np.array([self._row_of(block) for block in range(end - count, end)])
        name = f"{SHARD_FOLDER}/{self._manifest.names[shard].as_py()}"
        stored_bytes = int(self._manifest.stored_bytes[shard])
        first, last = int(rows[0]["offset"]), int(rows[-1]["offset"] + rows[-1]["stored_bytes"])
        # One byte more than needed shows whether the file is longer.
        tail = self._store.read(name, offset=last, length=stored_bytes - last + 1)
        if len(tail) != stored_bytes - last:
            found = "more" if len(tail) > stored_bytes - last else str(last + len(tail))
            return ShardCheck(name, f"{found} bytes found, the manifest says {stored_bytes}")
        head = self._store.read(name, offset=0, length=first)
        schema = self._manifest.stored_schema
        return ShardCheck(name, frame_problem(head, tail, schema=schema, rows=rows))

    def close(self) -> None:
        """Close the connections; the dataset cannot be read afterwards."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _read_alone(self, place: BlockPlace) -> tuple[bytes, pa.RecordBatch]:
        try:
            return self._read_once(place)
        except ShardCorruptError:
            return self._read_once(place)

    def _read_once(self, place: BlockPlace) -> tuple[bytes, pa.RecordBatch]:
        stored = self._store.read(place.shard, offset=place.offset, length=place.stored_bytes)
        return stored, self._decoded(stored, place)

    def _decoded(self, stored: bytes | memoryview, place: BlockPlace) -> pa.RecordBatch:
        batch = decode_block(stored, place, decoder=self._decoder)
        try:
            return self._narrowing.served(batch)
        except ValueError as error:
            raise place.damage(str(error)) from error

    def _places(self, blocks: Sequence[int]) -> Iterator[BlockPlace]:
        """Return the place of each block, all in rising order; a run is mostly in one shard."""
        shard, name = -1, ""
        for block in blocks:
            page, row = self._row(block)
            if shard < 0 or block >= self._shard_block_ends[shard]:
                shard = int(self._shard_block_ends.searchsorted(block, side="right"))
                name = f"{SHARD_FOLDER}/{self._manifest.names[shard].as_py()}"
            yield BlockPlace.of_row(page.rows[row], shard=name, block=block)

    def _row_of(self, block: int) -> np.void:
        page, row = self._row(block)
        found: np.void = page.rows[row]
        return found

    def _row(self, block: int) -> tuple[Page, int]:
        if not 0 <= block < self.block_count:
            raise BadArgumentError(
                f"block {block} is not in [0, {self.block_count})", field="block"
            )
        index, row = divmod(block, PAGE_BLOCKS)
        return self._table.page(index), row

    def _block_column(self, blocks: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        ordinals = checked_ordinals(blocks, self.block_count, "block")
        values = np.empty(len(ordinals), np.int64)
        for page, chosen in self._by_page(ordinals // PAGE_BLOCKS):
            values[chosen] = page.rows[name][ordinals[chosen] - page.first_block]
        return values

    def _by_page(self, pages: NDArray[np.int64]) -> Iterator[tuple[Page, NDArray[np.int64]]]:
        """Yield each page of ``pages`` with the indices at which it occurs."""
        if not len(pages):
            return
        if (pages == pages[0]).all():
            yield self._table.page(int(pages[0])), np.arange(len(pages))
            return
        order = np.argsort(pages, kind="stable")
        edges = np.flatnonzero(np.diff(pages[order])) + 1
        for chosen in np.split(order, edges):
            yield self._table.page(int(pages[chosen[0]])), chosen
