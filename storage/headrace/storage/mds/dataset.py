"""An MDS dataset, read in place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import (
    ConfigurationError,
    ObjectNotFoundError,
    ShardCorruptError,
    StoreRefusedError,
)
from headrace.storage.mds.arrays import ArrayType
from headrace.storage.mds.arrow import MAX_NARROW
from headrace.storage.mds.damage import DamageError, ShardPlace
from headrace.storage.mds.encoding import ValueKind
from headrace.storage.mds.first_shards import check_first_shards
from headrace.storage.mds.headers import Headers
from headrace.storage.mds.index import Index
from headrace.storage.mds.layout import MdsLayout
from headrace.storage.mds.schema import dataset_schema
from headrace.storage.mds.shard import (
    Samples,
    ShardDecoder,
    probe_arrays,
    shard_samples,
    unpacked,
)
from headrace.storage.mds.shard_schema import dynamic_columns
from headrace.storage.shard.buffers import offsets_of
from headrace.storage.source.kinds import MDS_INDEX_NAME
from headrace.storage.source.ordinals import read_only
from headrace.storage.source.prefix_search import Search, search_starts
from headrace.storage.source.source import ShardCheck
from headrace.storage.source.stretches import Stretches
from headrace.storage.store.store import Store, may_be_missing

_T = TypeVar("_T")

# Both arbitrary: consecutive S3 reads of 1 MiB take half a second in total.
_PROBED_BYTES = 16 << 20
_LEAST_PROBED = 3


class MdsDataset:
    """A dataset written by mosaicml-streaming. Safe to use from several threads.

    A compressed shard, a text shard or a shard with a hash is one block, since it can only be read
    or verified as a whole. Any other shard is cut into blocks of about 1 MiB of consecutive
    samples, each read with one range.

    Attributes:
        url: The URL of the dataset.
        fingerprint: 32 hexadecimal digits, a digest of what ``index.json`` says about the samples.
        schema: The columns of every batch.
        sample_count: The number of samples.
        shard_count: The number of shards, including empty ones.
        block_count: The number of blocks.
        raw_bytes: The uncompressed size of the shards in bytes.
        stored_bytes: The size of the shards in the store, in bytes.
        shard_sample_counts: ``(shards,) int64``; read-only.
        shard_raw_bytes: ``(shards,) int64``; read-only.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        *,
        allow_pickle: bool = False,
        mixed_arrays: bool = False,
    ) -> None:
        """Open a dataset; reads a header for each schema, and samples if only they show types.

        Args:
            store: The store of the shards; closed by `close`.
            index: The parsed ``index.json``.
            allow_pickle: Serve pickles, as bytes.
            mixed_arrays: Assume that arrays that store their own type or shape may have any.

        Raises:
            ConfigurationError: There are pickles, but they are not allowed.
            ManifestCorruptError: The index gives other columns than the header of a shard.
            ShardCorruptError: A sample that had to be read is damaged.
            UnsupportedColumnError: A column has types in different shards that no type represents.
        """
        if not allow_pickle:
            _refuse_pickles(index, store.url)
        whole = _whole_shards(index)
        self.url = store.url
        self.fingerprint = index.fingerprint
        self.sample_count = int(index.sample_counts.sum())
        self.shard_count = len(index.sample_counts)
        self.raw_bytes = int(index.raw_bytes.sum())
        self.stored_bytes = int(index.stored_bytes.sum())
        self.shard_sample_counts = read_only(index.sample_counts)
        self.shard_raw_bytes = read_only(index.raw_bytes)
        self._store = store
        self._index = index
        self._whole = whole
        self._headers = Headers(store)
        check_first_shards(store, index, self._headers)
        self._layout = MdsLayout(index.sample_counts, index.raw_bytes, whole=whole)
        self.block_count = self._layout.block_count
        arrays = self._any_arrays() if mixed_arrays else self._probe()
        wide = bool((index.raw_bytes > MAX_NARROW).any())
        self.schema = dataset_schema(index.schemas, arrays=arrays, wide=wide)
        self._decoders = [
            ShardDecoder(schema, self.schema, arrays, wide) for schema in index.schemas
        ]

    def stretches(self) -> Stretches:
        """Return its shards, as `OpenDataset.stretches`; nothing is read."""
        return Stretches(self.shard_sample_counts, self.shard_raw_bytes, self._layout.block_samples)

    def locate(
        self, sample_ids: NDArray[np.int64], *, search: Search = search_starts
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find the blocks of samples, without reading anything.

        Args:
            sample_ids: ``(n,)`` in ``[0, sample_count)``, in any order, repeats allowed.
            search: A faster replacement for `search_starts`, if there is one.

        Returns:
            Block ordinals and offsets of the samples in their blocks, ``(n,) int64`` each.

        Raises:
            BadArgumentError: An id is outside its range.
        """
        return self._layout.locate(sample_ids, search)

    def block_stored_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the stored bytes of each block, ``(n,) int64``.

        A block that is not a whole shard counts its samples' share of it.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._shares(blocks, self._index.stored_bytes)

    def block_raw_bytes(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the raw bytes of each block, ``(n,) int64``, as `block_stored_bytes` does.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._shares(blocks, self._index.raw_bytes)

    def block_first_samples(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the id of the first sample of each block, ``(n,) int64``.

        Raises:
            BadArgumentError: An ordinal is outside ``[0, block_count)``.
        """
        return self._layout.first_samples(blocks)

    def block_sample_range(self, block: int) -> tuple[int, int]:
        """Return the sample ids ``[first, last)`` of a block.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
        """
        shard, start, stop = self._block(block)
        first = self._layout.first_sample(shard)
        return first + start, first + stop

    def read_block(self, block: int) -> pa.RecordBatch:
        """Read, verify and decode one block; a damaged block is read once more.

        Args:
            block: In ``[0, block_count)``.

        Returns:
            Its samples, with the dataset's schema.

        Raises:
            BadArgumentError: The ordinal is outside ``[0, block_count)``.
            ShardCorruptError: It was damaged twice; names shard, block, sample and byte offset.
            ObjectNotFoundError: The shard is missing.
            StoreUnavailableError: The store cannot be reached.
        """
        shard, start, stop = self._block(block)
        place = ShardPlace(self._path(shard), block, start)
        decoder: ShardDecoder = self._decoders[int(self._index.schema_ordinals[shard])]
        return self._twice(
            shard, lambda: decoder.decode(self._samples(shard, start, stop, place=place))
        )

    def check_shard(self, shard: int) -> ShardCheck:
        """Look for bytes after a shard that is read by ranges, and tell whether a hash protects it.

        Raises:
            HeadraceError: See `OpenDataset.check_shard`.
        """
        index = self._index
        name, problem = self._name(shard), None
        if not self._whole[shard]:
            size = int(index.raw_bytes[shard])
            # The last byte and one more, since some stores refuse to read from the very end.
            found = len(self._store.read(name, offset=max(0, size - 1), length=2))
            if found != min(1, size):
                problem = f"{'more' if found else 'fewer'} bytes found, but the index says {size}"
        is_protected = bool(index.raw_hashes[shard].as_py() or index.stored_hashes[shard].as_py())
        return ShardCheck(name, problem, 0 if is_protected else int(index.sample_counts[shard]))

    def close(self) -> None:
        """Close the connections; the dataset cannot be read afterwards."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _twice(self, shard: int, attempt: Callable[[], _T]) -> _T:
        """Try again if data is damaged, in case it was damaged in transit."""
        try:
            return attempt()
        except ShardCorruptError:
            self._headers.forget(self._name(shard))
            return attempt()

    def _samples(self, shard: int, start: int, stop: int, *, place: ShardPlace) -> Samples:
        try:
            if self._whole[shard]:
                return self._read_whole(shard, place)
            return self._read_range(shard, start, stop, place)
        except DamageError as error:
            raise place.damage(error.found, sample=error.sample) from error

    def _read_whole(self, shard: int, place: ShardPlace) -> Samples:
        index = self._index
        raw_bytes = int(index.raw_bytes[shard])
        raw_hash = index.raw_hashes[shard].as_py()
        schema = index.schemas[index.schema_ordinals[shard]]
        stored_bytes = int(index.stored_bytes[shard])
        try:
            # One byte more than expected reveals a longer file.
            stored = self._store.read(self._name(shard), length=stored_bytes + 1)
        except (ObjectNotFoundError, StoreRefusedError) as error:
            if schema.compression is None or not may_be_missing(error):
                raise
            # A directory used by Mosaic's own reader contains the unpacked file instead.
            raw = self._store.read(index.raw_names[shard].as_py(), length=raw_bytes + 1)
            plain = replace(schema, compression=None)
            content = unpacked(
                raw, plain, stored_hash=raw_hash, raw_hash=raw_hash, raw_bytes=raw_bytes
            )
        else:
            if len(stored) != stored_bytes:
                found = "more" if len(stored) > stored_bytes else str(len(stored))
                raise DamageError(f"{found} bytes found, but the index says {stored_bytes}")
            stored_hash = index.stored_hashes[shard].as_py()
            content = unpacked(
                stored, schema, stored_hash=stored_hash, raw_hash=raw_hash, raw_bytes=raw_bytes
            )
        sample_count = int(index.sample_counts[shard])
        return shard_samples(content, schema, sample_count=sample_count, place=place)

    def _read_range(self, shard: int, start: int, stop: int, place: ShardPlace) -> Samples:
        name = self._name(shard)
        index = self._index
        offsets = self._headers.offsets(
            name,
            index.schemas[index.schema_ordinals[shard]],
            counts=(int(index.sample_counts[shard]), int(index.raw_bytes[shard])),
            samples=(start, stop),
        )
        first, last = int(offsets[0]), int(offsets[-1])
        content = self._store.read(name, offset=first, length=last - first)
        if len(content) != last - first:
            raise DamageError(
                f"{len(content)} bytes found from byte {first}, {last - first} expected"
            )
        return Samples(np.frombuffer(content, np.uint8), offsets - first, first, place)

    def _any_arrays(self) -> dict[str, ArrayType]:
        return {
            name: ArrayType(encoding.dtype, None)
            for schema in self._index.schemas
            for name, encoding in dynamic_columns(schema)
        }

    def _probe(self) -> dict[str, ArrayType]:
        """Read samples for columns whose arrays store their own type.

        The choice of samples depends only on the index, so that all servers find the same.
        """
        arrays: dict[str, ArrayType] = {}
        index = self._index
        asked = np.zeros(len(index.schemas), bool)
        for ordinal, schema in enumerate(index.schemas):
            dynamic = {name for name, _ in dynamic_columns(schema)}
            asked[ordinal] = bool(dynamic)
            filled = (index.schema_ordinals == ordinal) & (index.sample_counts > 0)
            if dynamic <= arrays.keys() or not filled.any():
                continue
            block = self._layout.first_sample(int(filled.argmax()))
            found = self._probe_block(int(self._layout.locate(np.array([block]))[0][0]), limit=1)
            arrays = {**found, **arrays}
        for block in self._spread(asked[index.schema_ordinals] & (index.sample_counts > 0)):
            # Damaged or missing shards are reported when they are read.
            with contextlib.suppress(ShardCorruptError, ObjectNotFoundError):
                for name, kind in self._probe_block(block).items():
                    arrays[name] = arrays[name].merged(kind)
        return arrays

    def _spread(self, wanted: NDArray[np.bool_]) -> list[int]:
        """Return about `_PROBED_BYTES` of evenly spaced blocks."""
        shards = np.flatnonzero(wanted)
        if not shards.size:
            return []
        firsts = np.array([self._layout.first_sample(int(shard)) for shard in shards])
        lasts = firsts + self._index.sample_counts[shards] - 1
        starts, stops = (self._layout.locate(ids)[0] for ids in (firsts, lasts))
        blocks = np.concatenate([np.arange(a, b + 1) for a, b in zip(starts, stops, strict=True)])
        mean_bytes = max(1, int(self._index.raw_bytes[shards].sum()) // len(blocks))
        count = max(_LEAST_PROBED, _PROBED_BYTES // mean_bytes)
        places = np.linspace(0, len(blocks) - 1, min(count, len(blocks))).astype(np.int64)
        return [int(block) for block in blocks[places]]

    def _probe_block(self, block: int, *, limit: int | None = None) -> dict[str, ArrayType]:
        shard, start, stop = self._block(block)
        schema = self._index.schemas[self._index.schema_ordinals[shard]]
        stop = stop if limit is None else min(stop, start + limit)
        place = ShardPlace(self._path(shard), block, start)
        return self._twice(
            shard,
            lambda: probe_arrays(self._samples(shard, start, stop, place=place), schema),
        )

    def _block(self, block: int) -> tuple[int, int, int]:
        shards, starts, stops = self._layout.sample_ranges(np.array([block]))
        return int(shards[0]), int(starts[0]), int(stops[0])

    def _shares(self, blocks: NDArray[np.int64], totals: NDArray[np.int64]) -> NDArray[np.int64]:
        shards, starts, stops = self._layout.sample_ranges(blocks)
        counts = self._index.sample_counts[shards]
        shares: NDArray[np.int64] = totals[shards] * (stops - starts) // counts
        return shares

    def _name(self, shard: int) -> str:
        name: str = self._index.stored_names[shard].as_py()
        return name

    def _path(self, shard: int) -> str:
        return f"{self.url}/{self._name(shard)}"


def _whole_shards(index: Index) -> NDArray[np.bool_]:
    """Return which shards can only be read and verified as a whole."""
    compressed = np.array(
        [schema.compression is not None or schema.text is not None for schema in index.schemas],
        bool,
    )
    hashed: NDArray[np.bool_] = np.diff(offsets_of(index.raw_hashes)) > 0
    return hashed | compressed[index.schema_ordinals] if len(compressed) else hashed


def _refuse_pickles(index: Index, url: str) -> None:
    for schema in index.schemas:
        for name, encoding in zip(schema.names, schema.encodings, strict=True):
            if encoding.kind is ValueKind.PICKLE:
                raise ConfigurationError(
                    f"column {name!r} of {url}/{MDS_INDEX_NAME} contains pickles, which can run "
                    "arbitrary code when they are read; allow them with allow_pickle if you trust "
                    "the dataset, or write it again without the column",
                    column=name,
                    url=url,
                )
