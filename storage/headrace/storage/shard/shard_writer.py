"""Write one shard with even blocks and checksums, streamed to the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, cast, get_args

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.storage.shard.block import BLOCK_DTYPE, MAX_BLOCK_BYTES
from headrace.storage.shard.block_cutter import BlockCutter, Cut
from headrace.storage.shard.column_facts import ColumnStats, stats_of
from headrace.storage.shard.list_lengths import list_lengths
from headrace.storage.store.store import ObjectWriter, Store

if TYPE_CHECKING:
    import io

SHARD_FOLDER = "shards"
DEFAULT_BLOCK_BYTES = 1 << 20  # a range read of this size is as fast as a larger one on S3
Compression = Literal["lz4", "zstd", "none"]

# A shard is compressed with LZ4 only if that saves at least this part of its first block. JPEG
# files gain nothing, and a server would decompress their blocks for nothing.
_LEAST_GAIN = 1 / 32
_TRIAL_BYTES = 64 << 10


@dataclass(frozen=True, slots=True, eq=False)
class ShardEntry:
    """A finished shard, as a manifest needs it. Picklable.

    Attributes:
        name: The name of the object in the folder of shards.
        stored_bytes: Size of the object.
        blocks: ``(blocks,)`` of `BLOCK_DTYPE`.
        columns: Statistics of each column of the schema.
        lengths: ``(samples,) uint32``: elements of each sample in the column whose lengths were
            requested; None if none were.
    """

    name: str
    stored_bytes: int
    blocks: NDArray[np.void]
    columns: tuple[ColumnStats, ...]
    lengths: NDArray[np.uint32] | None = None

    @property
    def sample_count(self) -> int:
        """Number of samples in the shard."""
        return int(self.blocks["sample_count"].sum(dtype=np.int64))

    @property
    def raw_bytes(self) -> int:
        """Raw bytes of the samples, as `sample_bytes` counts them."""
        return int(self.blocks["raw_bytes"].sum(dtype=np.int64))


class ShardWriter:
    """Writes one shard; not thread-safe.

    Blocks have about ``block_bytes`` raw bytes and equal numbers of samples, which `BlockCutter`
    chooses; if sizes change very much, it chooses again and blocks differ. Memory is bounded by the
    samples it chooses by, one batch and the buffers of the store's writer.

    1. Success: `close` publishes the shard and returns its entry.
    2. Failure or cancellation: `abort`, or leaving the ``with`` block without `close`, leaves
       nothing behind.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        schema: pa.Schema,
        compression: Compression = "lz4",
        compression_level: int | None = None,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        lengths: str | None = None,
    ) -> None:
        check_blocks(compression, block_bytes, compression_level)
        self._counted = lengths
        self._lengths: list[NDArray[np.uint32]] = []
        self._name = name
        self._schema = schema
        self._cutter = BlockCutter(block_bytes=block_bytes)
        self._blocks: list[tuple[int, int, int, int, int]] = []
        self._columns = [ColumnStats() for _ in schema]
        self._target = store.open_writer(f"{SHARD_FOLDER}/{name}")
        self._sink = MessageSink(self._target, schema)
        self._codec = _codec(compression, compression_level)
        self._file: pa.RecordBatchFileWriter | None = None

    def append(self, batch: pa.RecordBatch) -> None:
        """Add the samples of a batch, which has the writer's schema and any number of rows."""
        for cut in self._cutter.append(batch):
            self.write_block(cut)

    def write_block(self, cut: Cut) -> None:
        """Write one block that was cut elsewhere; not to be mixed with `append`.

        Raises:
            BadArgumentError: It is too large for a block, because a single sample is.
        """
        if cut.raw_bytes > MAX_BLOCK_BYTES:
            raise BadArgumentError(
                f"one sample of shard {self._name} has {cut.raw_bytes} bytes, expected at most "
                f"{MAX_BLOCK_BYTES}; split it",
                field="sample",
            )
        block = _one_batch(cut.batches)
        self._columns = [
            stats.merged(stats_of(column))
            for stats, column in zip(self._columns, block.columns, strict=True)
        ]
        if self._counted is not None:
            self._lengths.append(list_lengths(block.column(self._counted)).astype(np.uint32))
        file = self._file or self._begin(block if cut.raw_bytes >= _TRIAL_BYTES else None)
        self._sink.begin_message()
        file.write_batch(block)
        offset, stored_bytes, checksum = self._sink.end_message()
        self._blocks.append((offset, stored_bytes, block.num_rows, cut.raw_bytes, checksum))

    def close(self) -> ShardEntry:
        """Publish the shard.

        Returns:
            Its entry; `commit_dataset` makes it part of a dataset.
        """
        for cut in self._cutter.close():
            self.write_block(cut)
        (self._file or self._begin(None)).close()
        self._target.close()
        return ShardEntry(
            name=self._name,
            stored_bytes=self._sink.position,
            blocks=np.array(self._blocks, BLOCK_DTYPE),
            columns=tuple(self._columns),
            lengths=(
                None
                if self._counted is None
                else np.concatenate([*self._lengths, np.empty(0, np.uint32)])
            ),
        )

    def abort(self) -> None:
        """Remove everything that was written; harmless after `close`."""
        self._target.abort()

    def _begin(self, first: pa.RecordBatch | None) -> pa.RecordBatchFileWriter:
        """Open the file, without the codec if a first block shows that LZ4 gains nothing."""
        codec = self._codec
        if first is not None and codec is not None and codec.name == "lz4":
            plain_bytes = _message_bytes(first, None)
            if _message_bytes(first, codec) > (1 - _LEAST_GAIN) * plain_bytes:
                codec = None
        self._file = pa.ipc.new_file(
            self._sink.as_arrow(),
            self._schema,
            options=pa.ipc.IpcWriteOptions(compression=codec),
        )
        return self._file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()


def check_blocks(compression: str, block_bytes: int, compression_level: int | None = None) -> None:
    """Refuse invalid options of blocks before a job starts.

    Raises:
        BadArgumentError: The codec is unknown, or the size or the level is outside its range.
    """
    if compression not in get_args(Compression):
        raise BadArgumentError(
            f"compression is {compression!r}, expected one of {', '.join(get_args(Compression))}",
            field="compression",
        )
    if not 1 <= block_bytes <= MAX_BLOCK_BYTES // 2:
        raise BadArgumentError(
            f"block_bytes is {block_bytes}, expected 1 to {MAX_BLOCK_BYTES // 2}",
            field="block_bytes",
        )
    if compression_level is not None:
        _check_level(compression, compression_level)


def _check_level(compression: str, level: int) -> None:
    if compression == "none":
        raise BadArgumentError(
            f"compression_level is {level}, but compression is 'none'; leave one out",
            field="compression_level",
        )
    least = pa.Codec.minimum_compression_level(compression)  # type: ignore[arg-type] # a codec by now
    most = pa.Codec.maximum_compression_level(compression)  # type: ignore[arg-type] # as above
    if not least <= level <= most:
        raise BadArgumentError(
            f"compression_level is {level}, expected {least} to {most} for {compression}",
            field="compression_level",
        )


def _message_bytes(block: pa.RecordBatch, codec: pa.Codec | None) -> int:
    target = pa.MockOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(target, block.schema, options=options) as writer:
        writer.write_batch(block)
    return target.size()


def _codec(compression: Compression, level: int | None) -> pa.Codec | None:
    if compression == "none":
        return None
    return pa.Codec(compression, level)


class MessageSink:
    """A file for an Arrow writer that records the place and the checksum of each message.

    The writer writes the header before the first message, in separate calls. Its length is known,
    so it is not counted as part of the message.
    """

    closed = False

    def __init__(self, target: ObjectWriter, schema: pa.Schema) -> None:
        self.position = 0
        self._target = target
        self._header_bytes = len(_MAGIC) + schema.serialize().size
        self._start = 0
        self._hash = xxhash.xxh3_64()

    def as_arrow(self) -> pa.PythonFile:
        """Return the file that Arrow writes to."""
        return pa.PythonFile(cast("io.IOBase", self), mode="w")

    def begin_message(self) -> None:
        """Start a new message: the following writes belong to it."""
        self._start = max(self.position, self._header_bytes)
        self._hash.reset()

    def end_message(self) -> tuple[int, int, int]:
        """Return offset, length and checksum of the message that was just written."""
        return self._start, self.position - self._start, self._hash.intdigest()

    def write(self, chunk: bytes) -> int:
        """Pass ``chunk`` on to the target."""
        if self.position >= self._start:
            self._hash.update(chunk)
        elif self.position + len(chunk) > self._start:
            raise AssertionError("Arrow wrote its header and a message in one call")
        self._target.write(chunk)
        self.position += len(chunk)
        return len(chunk)

    def tell(self) -> int:
        """Return the bytes written so far."""
        return self.position

    def flush(self) -> None:
        """Do nothing, because the target decides when it sends."""

    def close(self) -> None:
        """Do nothing, because the owner publishes the target."""

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False


_MAGIC = b"ARROW1\0\0"


def _one_batch(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
