"""Decode shards: whole files to samples, and the bytes of many samples to columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ShardCorruptError
from headrace.storage.mds.arrays import ArrayType, probe
from headrace.storage.mds.columns import decode_column
from headrace.storage.mds.compression import decompressed
from headrace.storage.mds.damage import DamageError, ShardPlace
from headrace.storage.mds.description import check_description, check_length
from headrace.storage.mds.fields import UNKNOWN_ARRAYS, arrow_field
from headrace.storage.mds.hashes import digest_of
from headrace.storage.mds.samples import (
    WORD,
    Bytes,
    decode_offsets,
    header_bytes,
    value_spans,
)
from headrace.storage.mds.schema import conformed
from headrace.storage.mds.shard_schema import ShardSchema
from headrace.storage.mds.text_shard import decode_lines, line_offsets


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples of a shard, not decoded yet.

    Attributes:
        content: The bytes of the samples.
        offsets: ``(samples + 1,) int64`` into ``content``, ascending, inside it.
        start: The offset of ``content`` in the uncompressed shard.
        place: The block, for errors.
    """

    content: Bytes
    offsets: NDArray[np.int64]
    start: int
    place: ShardPlace

    @property
    def sample_count(self) -> int:
        """Return the number of samples."""
        return len(self.offsets) - 1

    def damage(self, error: DamageError) -> ShardCorruptError:
        """Return an error with its place in the shard."""
        first = 0 if error.sample is None else error.sample
        offset = self.start + int(self.offsets[first])
        return self.place.damage(error.found, offset=offset, sample=error.sample)


@dataclass(frozen=True, slots=True)
class ShardDecoder:
    """Decode the samples of shards with one schema into batches with the dataset's schema.

    Attributes:
        schema: The schema of the shards.
        served: The columns of the dataset as served.
        arrays: The properties found in samples for columns whose arrays store their own type.
        wide: Use 64-bit offsets.
    """

    schema: ShardSchema
    served: pa.Schema
    arrays: Mapping[str, ArrayType] = field(default_factory=dict)
    wide: bool = False

    def decode(self, samples: Samples) -> pa.RecordBatch:
        """Return the samples as a batch.

        Raises:
            ShardCorruptError: They do not match the schema; names the place.
        """
        try:
            return conformed(self._columns(samples), self.served, samples.sample_count)
        except DamageError as error:
            raise samples.damage(error) from error

    def _columns(self, samples: Samples) -> dict[str, pa.Array[Any]]:
        if self.schema.text is not None:
            return decode_lines(
                samples.content,
                samples.offsets,
                self.schema.text,
                names=self.schema.names,
                encodings=self.schema.encodings,
            )
        spans = value_spans(samples.content, samples.offsets, self.schema.sizes)
        columns = {}
        for name, encoding, span in zip(
            self.schema.names, self.schema.encodings, spans, strict=True
        ):
            arrays = self.arrays.get(name, UNKNOWN_ARRAYS) if encoding.is_dynamic else None
            target = arrow_field(name, encoding, arrays=arrays, wide=self.wide)
            try:
                columns[name] = decode_column(
                    samples.content, span, encoding, target, arrays=arrays
                )
            except DamageError as error:
                raise DamageError(f"column {name!r}: {error.found}", error.sample) from error
        return columns


def probe_arrays(samples: Samples, schema: ShardSchema) -> dict[str, ArrayType]:
    """Return the properties of columns whose arrays store their own type.

    Raises:
        ShardCorruptError: A sample does not match the schema; names the place.
    """
    try:
        spans = value_spans(samples.content, samples.offsets, schema.sizes)
        return {
            name: probe(samples.content, span, encoding)
            for name, encoding, span in zip(schema.names, schema.encodings, spans, strict=True)
            if encoding.is_dynamic
        }
    except DamageError as error:
        raise samples.damage(error) from error


def unpacked(
    stored: bytes, schema: ShardSchema, *, stored_hash: str, raw_hash: str, raw_bytes: int
) -> Bytes:
    """Return the uncompressed bytes of a whole file, verified.

    Args:
        stored: The file as stored.
        schema: Gives its compression, if any.
        stored_hash: ``algorithm:digest`` of the file, or empty.
        raw_hash: The same for the result; checked if there is no ``stored_hash``.
        raw_bytes: The size of the result.

    Raises:
        DamageError: It differs from the index.
    """
    _check_hash(stored, stored_hash)
    if schema.compression is None:
        if len(stored) != raw_bytes:
            raise DamageError(f"{len(stored)} bytes found, but the index says {raw_bytes}")
        return np.frombuffer(stored, np.uint8)
    raw = decompressed(stored, schema.compression.algorithm, raw_bytes=raw_bytes)
    if not stored_hash and raw_hash:
        _check_hash(raw.to_pybytes(), raw_hash)
    return np.frombuffer(memoryview(raw), np.uint8)


def shard_samples(
    raw: Bytes, schema: ShardSchema, *, sample_count: int, place: ShardPlace
) -> Samples:
    """Return the samples of a whole uncompressed shard.

    Raises:
        DescriptionError: The header gives other columns than ``schema``.
        DamageError: The header does not match a shard with ``sample_count`` samples.
    """
    if schema.text is not None:
        lines = line_offsets(raw, schema.text, schema.names, sample_count=sample_count)
        return Samples(raw, lines, 0, place)
    header = header_bytes(sample_count)
    if raw.size < header:
        raise DamageError(
            f"{raw.size} bytes found, but the header of {sample_count} samples has {header}"
        )
    check_count(raw[: WORD.itemsize], sample_count)
    offsets = decode_offsets(raw[WORD.itemsize : header], low=header, high=raw.size)
    if offsets[-1] != raw.size:
        raise DamageError(f"the last sample ends at {offsets[-1]}, but the file at {raw.size}")
    check_length(int(offsets[0]) - header)
    check_description(raw[header : int(offsets[0])].tobytes(), schema)
    return Samples(raw, offsets, 0, place)


def check_count(word: bytes | Bytes, sample_count: int) -> None:
    """Compare the first word of a shard with the index.

    Raises:
        DamageError: They differ.
    """
    found = int(np.frombuffer(word, WORD)[0])
    if found != sample_count:
        raise DamageError(f"{found} samples found, but the index says {sample_count}")


def _check_hash(content: bytes, wanted: str) -> None:
    if not wanted:
        return
    algorithm, _, digest = wanted.partition(":")
    found = digest_of(algorithm, content)
    if found != digest.lower():
        raise DamageError(f"{algorithm} {found} found, but the index says {digest[:200]}")
