"""A dataset of tar files in the WebDataset layout, read in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.storage.shard.even_blocks import block_samples_of
from headrace.storage.source.file_blocks import FileBlocks
from headrace.storage.source.ordinals import read_only, starts_of
from headrace.storage.source.source import ShardCheck
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.store import Store
from headrace.storage.webdataset.columns import KEY, column_of
from headrace.storage.webdataset.index import TarIndex, WebDatasetIndex
from headrace.storage.webdataset.tar import first_byte_after_end

if TYPE_CHECKING:
    _Array = pa.Array[Any]  # pyarrow's stubs have these generic, pyarrow itself has not
    _Field = pa.Field[Any]


class WebDataset(FileBlocks):
    """A directory of tar files. Safe to use from several threads.

    A tar file is a shard; a block is about 1 MiB of consecutive samples, read with one range. Tar
    has no checksums of contents, so only these are checked: the file's size and version, that text
    is UTF-8, and that numbers are numbers.

    Attributes:
        url: The URL of the directory.
        fingerprint: 32 hexadecimal digits, of names, sizes, entity tags and headers.
        schema: The columns of every batch.
        sample_count: The number of samples.
        shard_count: The number of tar files.
        block_count: The number of blocks.
        raw_bytes: Bytes of the members.
        stored_bytes: Bytes of the tar files.
        shard_sample_counts: ``(shards,) int64``; read-only.
        shard_raw_bytes: ``(shards,) int64``; read-only.
        index: What was read from the files; `encode_stored_index` stores it.
    """

    def __init__(self, files: Store, index: WebDatasetIndex) -> None:
        starts = [shard.block_starts for shard in index.shards]
        self._block_samples = np.concatenate([np.diff(part) for part in starts])
        super().__init__(files, self._block_samples)
        self.fingerprint = index.fingerprint
        self.schema = index.schema
        self.shard_count = len(index.shards)
        self.stored_bytes = sum(shard.entry.stored_bytes for shard in index.shards)
        self.shard_sample_counts = read_only(
            np.array([shard.sample_count for shard in index.shards], np.int64)
        )
        self.shard_raw_bytes = read_only(
            np.array([shard.sizes.sum() for shard in index.shards], np.int64)
        )
        self.raw_bytes = int(self.shard_raw_bytes.sum())
        self.index = index
        self._shards = index.shards
        self._first_blocks = starts_of(np.array([len(part) - 1 for part in starts], np.int64))
        self._spans = np.concatenate(
            [_spans(shard, part) for shard, part in zip(index.shards, starts, strict=True)]
        )

    def stretches(self) -> Stretches:
        """Return its tar files, as `OpenDataset.stretches`; nothing is read."""
        return Stretches(
            self.shard_sample_counts,
            self.shard_raw_bytes,
            block_samples_of(self._block_samples, np.diff(self._first_blocks)),
        )

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes that reading each block fetches, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        spans = self._spans[self._checked(blocks)]
        lengths: NDArray[np.int64] = spans[:, 1] - spans[:, 0]
        return lengths

    def block_raw_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the same as `block_stored_bytes`, since headers between members are small.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self.block_stored_bytes(blocks)

    def check_shard(self, shard: int) -> ShardCheck:
        """Look for bytes after the end of a tar file; no checksums protect its contents.

        Raises:
            HeadraceError: See `OpenDataset.check_shard`.
        """
        entry = self._shards[shard].entry
        place = first_byte_after_end(self._files, entry)
        problem = None
        if place is not None:
            problem = (
                f"there are bytes at {place} after the end of the archive, which readers ignore; "
                "were two files joined?"
            )
        return ShardCheck(entry.name, problem, int(self.shard_sample_counts[shard]))

    def _read_once(self, block: int) -> pa.RecordBatch:
        ordinal = int(np.searchsorted(self._first_blocks, block, side="right")) - 1
        shard = self._shards[ordinal]
        start, stop = self._spans[block].tolist()
        content = memoryview(self._files.read_entry(shard.entry, offset=start, length=stop - start))
        before = int(self._starts.values[self._first_blocks[ordinal]])
        first, last = (sample - before for sample in self.block_sample_range(block))
        columns = []
        for field in self.schema:
            try:
                columns.append(
                    shard.keys[first:last]
                    if field.name == KEY
                    else _column(shard, field, (first, last), (content, start))
                )
            except (ValueError, pa.ArrowException) as error:
                raise ShardCorruptError(
                    f"shard {shard.entry.name}, block {block}, at byte {start}: column "
                    f"{field.name!r}: {error}; restore the file or write it again",
                    shard=shard.entry.name,
                    block=block,
                    offset=start,
                ) from error
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _column(
    shard: TarIndex, field: _Field, samples: tuple[int, int], content: tuple[memoryview, int]
) -> _Array:
    """Make a column of the samples ``[first, last)`` of a shard from their bytes."""
    first, last = samples
    stored, start = content
    edges = shard.first_members[first : last + 1]
    members = slice(int(edges[0]), int(edges[-1]))
    try:
        wanted = shard.names.index(field.name)
    except ValueError:
        missing: _Array = pa.nulls(last - first, field.type)
        return missing
    chosen = np.flatnonzero(shard.columns[members] == wanted)
    present = np.zeros(last - first, np.bool_)
    present[np.searchsorted(edges - edges[0], chosen, side="right") - 1] = True
    starts = (shard.offsets[members][chosen] - start).tolist()
    sizes = shard.sizes[members][chosen].tolist()
    values = [stored[at : at + size] for at, size in zip(starts, sizes, strict=True)]
    return column_of(values, present, field)


def _spans(shard: TarIndex, block_starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes ``[start, stop)`` of each block in its file, ``(blocks, 2) int64``."""
    edges = shard.first_members[block_starts]
    ends = shard.offsets + shard.sizes
    return np.stack([shard.offsets[edges[:-1]], ends[edges[1:] - 1]], axis=1)
