"""Write a sequence of samples as shards with even blocks, cut by raw bytes.

1. Success: `append` and `close` return finished shards, which are complete in the store.
2. Failure or cancellation: `abort` removes what was written, as far as it can.
3. Memory: one block, the samples that its size is chosen by, and the buffers of the store's writer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage.shard.block_cutter import BlockCutter, Cut
from headrace.storage.shard.shard_writer import (
    DEFAULT_BLOCK_BYTES,
    SHARD_FOLDER,
    Compression,
    ShardEntry,
    ShardWriter,
)
from headrace.storage.store.store import Store

DEFAULT_SHARD_BYTES = 64 << 20  # large enough that listing and opening cost little in comparison


@dataclass(frozen=True, slots=True)
class ShardSizes:
    """How shards are cut and compressed. Picklable.

    Attributes:
        compression: The compression of each block.
        level: The level of the compression; `None` is the library's default.
        shard_bytes: The most raw bytes of a shard, unless a single sample has more; `None` ends
            shards only where the sizes of samples change much.
        block_bytes: The approximate raw bytes of a block.
        lengths: A column of lists whose lengths entries record; `None` for none.
    """

    compression: Compression = "lz4"
    level: int | None = None
    shard_bytes: int | None = DEFAULT_SHARD_BYTES
    block_bytes: int = DEFAULT_BLOCK_BYTES
    lengths: str | None = None


class ShardSeries:
    """The shards of one sequence of samples; not thread-safe.

    Args:
        store: The store of the dataset; the caller closes it.
        schema: The schema of the batches.
        sizes: How to cut them.
        name_of: Returns the name of a shard, given its number.
    """

    def __init__(
        self, store: Store, schema: pa.Schema, sizes: ShardSizes, *, name_of: Callable[[int], str]
    ) -> None:
        self._store = store
        self._schema = schema
        self._sizes = sizes
        self._name_of = name_of
        self._cutter = BlockCutter(block_bytes=sizes.block_bytes, shard_bytes=sizes.shard_bytes)
        self._writer: ShardWriter | None = None
        self._names: list[str] = []

    def append(self, batch: pa.RecordBatch) -> list[ShardEntry]:
        """Add samples and return the shards that they finish."""
        return self._write(self._cutter.append(batch))

    def close(self) -> list[ShardEntry]:
        """Finish the last shard and return the shards not returned yet."""
        return [*self._write(self._cutter.close()), *self._finish()]

    def abort(self) -> None:
        """Remove everything that was written."""
        if self._writer is not None:
            self._writer.abort()
        for name in self._names:
            with contextlib.suppress(HeadraceError):
                self._store.delete(f"{SHARD_FOLDER}/{name}")

    def _write(self, cuts: Iterable[Cut]) -> list[ShardEntry]:
        finished: list[ShardEntry] = []
        for cut in cuts:
            if cut.starts_shard:
                finished.extend(self._finish())
            writer = self._writer or self._open()
            writer.write_block(cut)
        return finished

    def _open(self) -> ShardWriter:
        name = self._name_of(len(self._names))
        self._writer = ShardWriter(
            self._store,
            name,
            schema=self._schema,
            compression=self._sizes.compression,
            compression_level=self._sizes.level,
            block_bytes=self._sizes.block_bytes,
            lengths=self._sizes.lengths,
        )
        self._names.append(name)
        return self._writer

    def _finish(self) -> list[ShardEntry]:
        writer, self._writer = self._writer, None
        if writer is None:
            return []
        with writer:
            return [writer.close()]
