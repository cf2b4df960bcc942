"""Scatter samples over buckets by the highest bits of their keys, in a temporary file.

A key is a seeded permutation of the sample's number, so keys are distinct, and sorting by key gives
a random order.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.converter.local.spill_file import SpillFile
from headrace.storage import sample_bytes

KEY_BITS = 64
ID_COLUMN = "__headrace_sample_id"

Ids = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Keys:
    """Permute the numbers of samples by a seed, with two rounds of SplitMix64's mixer.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """

    def __init__(self, seed: int) -> None:
        self._first = _mixed(np.array([seed % (1 << KEY_BITS)], np.uint64) + _GOLDEN)
        self._second = _mixed(self._first + _GOLDEN)

    def of(self, ids: Ids) -> Ids:
        """Return the keys of samples, ``(n,)``; distinct for distinct ids."""
        return _mixed(_mixed(ids ^ self._first) + self._second)


def _mixed(values: Ids) -> Ids:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Ids = values ^ (values >> np.uint64(31))
    return mixed


@dataclass(slots=True)
class Bucket:
    """Samples whose keys start with the same bits.

    Attributes:
        sample_count: The number of samples.
        raw_bytes: Their size according to `sample_bytes`, which depends only on the samples.
        chunks: The first byte and the length of its parts in the temporary file.
    """

    sample_count: int = 0
    raw_bytes: int = 0
    chunks: list[tuple[int, int]] = field(default_factory=list)

    def batches(self, file: SpillFile) -> Iterator[pa.RecordBatch]:
        """Yield its samples with their ids, in no particular order."""
        for start, length in self.chunks:
            with pa.ipc.open_stream(pa.py_buffer(file.read(start, length))) as reader:
                yield from reader


class Scatter:
    """Store samples by bucket. Safe to use from several threads.

    Each thread in `add` fills its own buffer.

    Args:
        file: The file to write to.
        schema: The schema of the samples.
        keys: Computes their keys.
        bits: There are ``2 ** bits`` buckets.
        skipped_bits: The number of highest bits that all keys share.
        buffer_bytes: The size of samples in a buffer.
    """

    def __init__(
        self,
        file: SpillFile,
        schema: pa.Schema,
        keys: Keys,
        *,
        bits: int,
        skipped_bits: int = 0,
        buffer_bytes: int,
    ) -> None:
        self.buckets = [Bucket() for _ in range(1 << bits)]
        self._file = file
        self._schema = schema.append(pa.field(ID_COLUMN, pa.uint64()))
        self._keys = keys
        self._skipped, self._dropped = np.uint64(skipped_bits), np.uint64(KEY_BITS - bits)
        self._buffer_bytes = buffer_bytes
        self._lock = threading.Lock()
        self._idle: list[_Buffer] = []

    def add(self, batch: pa.RecordBatch, ids: Ids) -> None:
        """Add samples with their ids, ``(n,)``.

        Raises:
            ConfigurationError: The disk is full.
        """
        with self._lock:
            buffer = self._idle.pop() if self._idle else _Buffer()
        count = max(1, -(-batch.nbytes // self._buffer_bytes))
        step = max(1, -(-batch.num_rows // count))
        for start in range(0, batch.num_rows, step):
            part = batch.slice(start, step)
            columns = [*part.columns, pa.array(ids[start : start + step])]
            buffer.batches.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
            buffer.held_bytes += part.nbytes
            if buffer.held_bytes >= self._buffer_bytes:
                self._spill(buffer)
        with self._lock:
            self._idle.append(buffer)

    def flush(self) -> None:
        """Write the contents of buffers, after all threads are done.

        Raises:
            ConfigurationError: The disk is full.
        """
        for buffer in self._idle:
            self._spill(buffer)

    def _spill(self, buffer: _Buffer) -> None:
        batches, buffer.batches, buffer.held_bytes = buffer.batches, [], 0
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        del batches  # of which `table` is a copy
        keys = self._keys.of(table.column(ID_COLUMN).to_numpy())
        places = ((keys << self._skipped) >> self._dropped).astype(np.uint16)
        taken = table.take(np.argsort(places, kind="stable"))
        del table
        start = 0
        for bucket, count in enumerate(np.bincount(places, minlength=len(self.buckets)).tolist()):
            if count:
                self._put(bucket, taken.slice(start, count))
                start += count

    def _put(self, bucket: int, samples: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, samples.schema, options=options) as writer:
            writer.write_table(samples)
        content = memoryview(sink.getvalue())
        start = self._file.append(content)
        without_ids = samples.drop_columns([ID_COLUMN])
        raw_bytes = sum(int(sample_bytes(batch).sum()) for batch in without_ids.to_batches())
        with self._lock:
            entry = self.buckets[bucket]
            entry.sample_count += samples.num_rows
            entry.raw_bytes += raw_bytes
            entry.chunks.append((start, len(content)))


@dataclass(slots=True)
class _Buffer:
    batches: list[pa.RecordBatch] = field(default_factory=list)
    held_bytes: int = 0
