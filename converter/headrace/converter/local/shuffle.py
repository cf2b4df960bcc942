"""Put the samples of pieces into a random order, in two passes and bounded memory.

The first pass scatters samples over buckets by the highest bits of their keys; the second reads
bucket after bucket and sorts each in memory. A bucket that is too large is scattered once more. So
the order depends only on the seed and the input, not on memory or threads.

Contract of `ShuffledPieces`:

1. `scatter` reads every piece once; after it, the pieces have every sample once.
2. Memory: samples of `MEMORY_BYTES` for all threads together, or 32 MiB per thread if that is more,
   briefly three times as much; and a batch as it is read.
3. `close` frees the disk space, and so does the end of the process, however it ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Self

import numpy as np
import pyarrow as pa

from headrace.converter.local.buckets import ID_COLUMN, KEY_BITS, Bucket, Keys, Scatter
from headrace.converter.local.spill_file import SpillFile
from headrace.converter.local.threads import run_each
from headrace.converter.sources.pieces import SourcePieces

MEMORY_BYTES = 512 << 20
_LEAST_BYTES = 32 << 20  # per thread: less makes many small parts of buckets
_MOST_BYTES = 128 << 20  # per thread: more gains nothing
_LEAST_BITS, _MOST_BITS = 2, 10  # with 64 GiB, each of 1,024 buckets has 64 MiB
_BUCKET_BYTES = 32 << 20  # at most, if the bits suffice and sizes are as stated
_FINER_BITS = 5  # for a bucket that is too large
_PIECE_BYTES = 256 << 20  # neighbouring buckets form a piece of this size: some shards
_BATCH_BYTES = 4 << 20
_PIECE_SHIFT = 40  # a piece has fewer than 2**40 samples

Tell = Callable[[int, int, int], None]
"""Called with the pieces read, the bytes of samples read, and the bytes of temporary data."""


class ShuffledPieces:
    """Other pieces in random order, as `SourcePieces`, to be read after `scatter`.

    Args:
        pieces: The other pieces.
        seed: The seed of the order, any integer.
        folder: The folder for temporary data.
        threads: The number of pieces to read at once, in either pass.
        memory_bytes: The memory for samples of all threads together.
    """

    def __init__(
        self,
        pieces: SourcePieces,
        *,
        seed: int,
        folder: str,
        threads: int,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._pieces = pieces
        self._keys = Keys(seed)
        self._folder = folder
        self._threads = threads
        least = min(_LEAST_BYTES, memory_bytes)
        self._room = min(_MOST_BYTES, max(memory_bytes // threads, least))
        self._bits = _bucket_bits(pieces.raw_bytes)
        self._file: SpillFile | None = None
        self._buckets: Sequence[Bucket] = ()
        self._bounds = [0]

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch."""
        return self._pieces.schema

    @property
    def count(self) -> int:
        """Return the number of pieces, after `scatter`."""
        return len(self._bounds) - 1

    @property
    def raw_bytes(self) -> int:
        """Return the approximate size of all samples in bytes; 0 if unknown."""
        return self._pieces.raw_bytes

    def scatter(self, tell: Tell) -> None:
        """Read all pieces and store their samples in buckets: the first pass.

        Raises:
            ConfigurationError: The disk is full.
            HeadraceError: A piece cannot be read.
        """
        file = self._file = SpillFile(self._folder)
        scatter = Scatter(file, self.schema, self._keys, bits=self._bits, buffer_bytes=self._room)
        stop = threading.Event()
        lock = threading.Lock()
        read_pieces = read_bytes = 0

        def read(piece: int) -> None:
            nonlocal read_pieces, read_bytes
            first = piece << _PIECE_SHIFT
            for batch in self._pieces.read(piece):
                if stop.is_set():
                    return
                ids = np.arange(first, first + batch.num_rows, dtype=np.uint64)
                scatter.add(batch, ids)
                first += batch.num_rows
                with lock:
                    read_bytes += batch.nbytes
            with lock:
                read_pieces += 1

        run_each(
            read,
            self._pieces.count,
            threads=self._threads,
            name="headrace-shuffle",
            stop=stop,
            tell=lambda: tell(read_pieces, read_bytes, file.size),
        )
        scatter.flush()
        tell(read_pieces, read_bytes, file.size)
        self._buckets = scatter.buckets
        self._bounds = _bounds(scatter.buckets)

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Yield the samples of one piece of the second pass."""
        assert self._file is not None, "scattered first"
        for bucket in self._buckets[self._bounds[piece] : self._bounds[piece + 1]]:
            yield from self._sorted(self._file, bucket, self._bits)

    def close(self) -> None:
        """Free the disk space."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _sorted(self, file: SpillFile, bucket: Bucket, bits: int) -> Iterator[pa.RecordBatch]:
        """Yield the samples of a bucket, whose keys share ``bits``, in the order of keys."""
        is_large = bucket.raw_bytes > self._room and bucket.sample_count > 1
        if is_large and bits + _FINER_BITS <= KEY_BITS:
            yield from self._finer(file, bucket, bits)
        elif bucket.sample_count:
            table = pa.Table.from_batches(bucket.batches(file)).combine_chunks()
            keys = self._keys.of(table.column(ID_COLUMN).to_numpy())
            samples = pa.Table.from_arrays(table.columns[:-1], schema=self.schema)
            order = np.argsort(keys)
            step = max(1, _BATCH_BYTES * bucket.sample_count // max(1, bucket.raw_bytes))
            for start in range(0, len(order), step):
                yield from samples.take(order[start : start + step]).to_batches()

    def _finer(self, file: SpillFile, bucket: Bucket, bits: int) -> Iterator[pa.RecordBatch]:
        with SpillFile(self._folder) as finer:
            scatter = Scatter(
                finer,
                self.schema,
                self._keys,
                bits=_FINER_BITS,
                skipped_bits=bits,
                buffer_bytes=self._room,
            )
            for batch in bucket.batches(file):
                ids = batch.column(ID_COLUMN).to_numpy()
                scatter.add(batch.drop_columns([ID_COLUMN]), ids)
            scatter.flush()
            for part in scatter.buckets:
                yield from self._sorted(finer, part, bits + _FINER_BITS)


def _bucket_bits(raw_bytes: int) -> int:
    """Return the logarithm of the number of buckets; a size of 0 means unknown."""
    if not raw_bytes:
        return _MOST_BITS
    return min(_MOST_BITS, _LEAST_BITS + (raw_bytes // _BUCKET_BYTES).bit_length())


def _bounds(buckets: Sequence[Bucket]) -> list[int]:
    """Return the first bucket of each piece, and the end of the last."""
    bounds, size = [0], 0
    for number, bucket in enumerate(buckets):
        if size and size + bucket.raw_bytes > _PIECE_BYTES:
            bounds.append(number)
            size = 0
        size += bucket.raw_bytes
    return [*bounds, len(buckets)]
