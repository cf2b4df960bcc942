"""Look for the blocks of a dataset in the cache's folder before fetching them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import pyarrow as pa

from headrace.errors import HeadraceError, ShardCorruptError
from headrace.server.cache.disk.disk_cache import DiskCache
from headrace.storage import OpenDataset, ReadBlock

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)


@runtime_checkable
class _Stored(Protocol):
    """A dataset whose blocks can be kept in their stored form, as our own can."""

    def read_stored(self, block: int) -> tuple[bytes, pa.RecordBatch]: ...

    def decode_stored(self, block: int, stored: bytes) -> pa.RecordBatch: ...

    def run_blocks(self, max_bytes: int) -> int: ...

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]: ...


class DiskBlocks:
    """Reads blocks as `OpenDataset.read_block` does, but looks in the folder first.

    Args:
        dataset: The dataset; the caller closes it.
        disk: The folder.
    """

    def __init__(self, dataset: OpenDataset, disk: DiskCache) -> None:
        self.schema = dataset.schema
        self._fingerprint = dataset.fingerprint
        self._stored: _Stored = dataset if isinstance(dataset, _Stored) else _Encoded(dataset)
        self._disk = disk

    def read_block(self, block: int) -> pa.RecordBatch:
        """Read one block from the folder, or fetch it and store it there."""
        kept = self._kept(block)
        if kept is not None:
            return kept
        stored, batch = self._stored.read_stored(block)
        self._disk.put(self._fingerprint, block, stored)
        return batch

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks to read together; see the dataset's method."""
        return self._stored.run_blocks(max_bytes)

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks from the folder, and fetch missing ones together and store them there."""
        missing = []
        for block in blocks:
            kept = self._kept(block)
            if kept is None:
                missing.append(block)
            else:
                yield ReadBlock(block, kept)
        for read in self._stored.read_run(missing):
            if isinstance(read.content, pa.RecordBatch):
                # A copy, because a view would keep the bytes of the whole run alive.
                self._disk.put(self._fingerprint, read.block, bytes(read.stored))
            yield read

    def _kept(self, block: int) -> pa.RecordBatch | None:
        kept = self._disk.get(self._fingerprint, block)
        if kept is None:
            return None
        try:
            return self._stored.decode_stored(block, kept)
        except ShardCorruptError:
            # The checksum is right, so the file was written with bytes that do not match the
            # manifest.
            self._disk.drop(self._fingerprint, block)
            return None


class _Encoded:
    """Blocks of a dataset in another layout, which are stored as Arrow streams."""

    def __init__(self, dataset: OpenDataset) -> None:
        self._dataset = dataset

    def read_stored(self, block: int) -> tuple[bytes, pa.RecordBatch]:
        batch = self._dataset.read_block(block)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        return sink.getvalue().to_pybytes(), batch

    def run_blocks(self, max_bytes: int) -> int:
        del max_bytes
        return 1

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        for block in blocks:
            try:
                stored, batch = self.read_stored(block)
            except HeadraceError as error:
                yield ReadBlock(block, error)
            else:
                yield ReadBlock(block, batch, stored)

    def decode_stored(self, block: int, stored: bytes) -> pa.RecordBatch:
        try:
            batch = pa.ipc.open_stream(stored).read_next_batch()
        except (pa.ArrowException, StopIteration, EOFError, OSError) as error:
            raise ShardCorruptError(f"block {block} in the cache's folder: {error}") from error
        first, last = self._dataset.block_sample_range(block)
        if batch.num_rows != last - first or not batch.schema.equals(self._dataset.schema):
            raise ShardCorruptError(
                f"block {block} in the cache's folder: {batch.num_rows} samples of "
                f"{batch.schema.names} found, {last - first} of "
                f"{self._dataset.schema.names} expected"
            )
        return batch
