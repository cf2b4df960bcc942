"""A dataset of Parquet files, open for reading: a file is a shard, a row group a block."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.errors import ShardCorruptError
from headrace.storage.parquet.field_ids import FileNames, file_names, is_by_id
from headrace.storage.parquet.footer import Footer, read_known_footer
from headrace.storage.parquet.index import ParquetIndex
from headrace.storage.parquet.read import block_damage, read_row_group, without_rows
from headrace.storage.parquet.serve import column_plans, served_batch
from headrace.storage.parquet.thrift import has_checksum
from headrace.storage.shard.even_blocks import block_samples_of
from headrace.storage.source.file_blocks import FileBlocks
from headrace.storage.source.ordinals import read_only, starts_of
from headrace.storage.source.source import ShardCheck
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.store import Store

# Larger row groups of different sizes are read as a whole: as parts of runs of 2 MiB, the order's
# default, they would be read more than 1.5 times.
_LARGE_UNEVEN_BYTES = 1 << 20
_FOOTER_BYTES = 32 << 20  # as stored; a parsed footer takes about five times as much
_OpenFile = tuple[Footer, pq.FileMetaData, FileNames | None]
_PAGE_HEADER_BYTES = 128  # its first fields are numbers of at most 10 bytes each


class ParquetDataset(FileBlocks):
    """A dataset of Parquet files. Safe to use from several threads.

    Reading a block verifies all that Parquet allows: checksums of pages, if the writer made them;
    the file's version, if the store has versions; lengths, counts and types.

    Attributes:
        url: The URL of the files; the folder, if the dataset is a single file.
        index: All that is known about the files; `encode_index` stores it.
        fingerprint: 32 hexadecimal digits that identify the files and their content.
        schema: The columns of every batch.
        sample_count: The number of samples.
        shard_count: The number of files.
        block_count: The number of row groups with samples.
        raw_bytes: The size of the samples according to the footers, in bytes.
        stored_bytes: Bytes of the files.
        shard_sample_counts: ``(shards,) int64``, may contain zeros; read-only.
        shard_raw_bytes: ``(shards,) int64``; read-only.
    """

    def __init__(self, files: Store, index: ParquetIndex) -> None:
        groups = index.row_groups
        super().__init__(files, groups["sample_count"])
        self.index = index
        self.fingerprint = index.fingerprint
        self.schema = index.schema
        self.shard_count = len(index.files)
        self.raw_bytes = int(groups["raw_bytes"].sum())
        self.stored_bytes = sum(file.entry.stored_bytes for file in index.files)
        self._is_by_id = is_by_id(index.physical)
        self._footers: LruCache[int, _OpenFile] = LruCache(
            max_bytes=_FOOTER_BYTES, size=lambda found: len(found[0].content)
        )
        self._plans = column_plans(index.schema, index.physical)
        self._block_starts = index.block_starts
        self.shard_sample_counts = _by_file(groups["sample_count"], self._block_starts)
        self.shard_raw_bytes = _by_file(groups["raw_bytes"], self._block_starts)

    def stretches(self) -> Stretches:
        """Return its files, as `OpenDataset.stretches`; nothing is read.

        In files with large row groups of different sizes, each row group is a stretch. Files
        without samples have no stretch.
        """
        counts = self.index.row_groups["sample_count"].astype(np.int64)
        raw_bytes = self.index.row_groups["raw_bytes"].astype(np.int64)
        per_file = np.diff(self._block_starts)
        is_large = self.shard_raw_bytes > _LARGE_UNEVEN_BYTES * per_file
        is_split = is_large & (block_samples_of(counts, per_file) == 0)
        is_first = np.zeros(len(counts) + 1, np.bool_)
        is_first[self._block_starts] = True
        starts = np.flatnonzero(is_first[:-1] | np.repeat(is_split, per_file))
        return Stretches(
            sample_counts=_sums(counts, starts),
            raw_bytes=_sums(raw_bytes, starts),
            block_samples=block_samples_of(counts, np.diff(starts, append=len(counts))),
        )

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many bytes the column chunks of each block take, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._column(blocks, "stored_bytes")

    def block_raw_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the raw bytes of each block according to its footer, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._column(blocks, "raw_bytes")

    def check_shard(self, shard: int) -> ShardCheck:
        """Return whether the pages of a file have checksums, judging by its first page.

        Raises:
            HeadraceError: See `OpenDataset.check_shard`.
        """
        entry = self.index.files[shard].entry
        if not self.shard_sample_counts[shard]:
            return ShardCheck(entry.name)
        stated = self.index.row_groups[self._block_starts[shard]]
        offset = int(stated["offset"])
        length = min(_PAGE_HEADER_BYTES, entry.stored_bytes - offset)
        header = self._files.read_entry(entry, offset=offset, length=length)
        count = 0 if has_checksum(header) else int(self.shard_sample_counts[shard])
        return ShardCheck(entry.name, unprotected_count=count)

    def read_columns(self, block: int, names: tuple[str, ...]) -> pa.RecordBatch:
        """Read some columns of one block, as `read_block` reads all, without fetching others.

        Args:
            block: In ``[0, block_count)``.
            names: The names of columns of `schema`, in its order.

        Raises:
            HeadraceError: See `read_block`.
        """
        self._checked(np.array([block]))
        try:
            return self._read_some(block, names)
        except ShardCorruptError:
            return self._read_some(block, names)

    def _read_once(self, block: int) -> pa.RecordBatch:
        return self._read_some(block, None)

    def _read_some(self, block: int, names: tuple[str, ...] | None) -> pa.RecordBatch:
        schema, plans, stored = self.schema, self._plans, None
        if names is not None:
            plans = tuple(plan for plan in plans if plan.name in names)
            schema = pa.schema([self.schema.field(plan.name) for plan in plans])
        if names is not None or self._is_by_id:
            stored = [plan.stored_name for plan in plans]
        ordinal = int(np.searchsorted(self._block_starts, block, side="right")) - 1
        stated = self.index.row_groups[block]
        row_group = int(stated["row_group"])
        footer, metadata, own = self._footers.get(ordinal, lambda: self._footer(ordinal))
        if own is not None and stored is not None:
            stored = [own.stored[name] for name in stored if name in own.stored]
        table = read_row_group(self._files, footer, metadata, row_group=row_group, columns=stored)
        if own is not None:
            table = own.renamed(table)
        constants = self.index.constants
        try:
            batch = served_batch(
                table,
                plans,
                schema=schema,
                constants={
                    name: constants.column(name)[ordinal] for name in constants.schema.names
                },
                file=footer.entry.name,
                is_by_id=self._is_by_id,
            )
        except ValueError as error:
            offset = int(stated["offset"])
            raise block_damage(footer, row_group, str(error), offset=offset) from error
        return without_rows(batch, self._deleted(ordinal, stated))

    def _footer(self, ordinal: int) -> _OpenFile:
        """Read a footer, verified against the index."""
        file = self.index.files[ordinal]
        footer = read_known_footer(
            self._files, file.entry, length=file.footer_bytes, digest=file.footer_digest
        )
        with footer.file() as opened:
            names = (
                file_names(opened.schema_arrow, self.index.physical, file=file.entry.name)
                if self._is_by_id
                else None
            )
            return footer, opened.metadata, names

    def _deleted(self, ordinal: int, stated: np.void) -> NDArray[np.int64]:
        rows = self.index.deleted.get(ordinal)
        if rows is None:
            return np.empty(0, np.int64)
        first = int(stated["first_row"])
        inside = slice(*np.searchsorted(rows, [first, first + int(stated["row_count"])]))
        return rows[inside] - first

    def _column(self, blocks: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        return np.asarray(self.index.row_groups[name][self._checked(blocks)], np.int64)


def _by_file(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up values of blocks by file."""
    return read_only(np.diff(starts_of(values)[starts]))


def _sums(values: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add up consecutive parts, none of which is empty."""
    return np.add.reduceat(values, starts) if len(starts) else np.empty(0, np.int64)
