"""Read the headers of shards that are read by ranges, and cache the offsets of their samples."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.caches import LruCache
from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.description import check_description, check_length, expected_bytes
from headrace.storage.mds.samples import WORD, decode_offsets, header_bytes
from headrace.storage.mds.shard import check_count
from headrace.storage.mds.shard_schema import ShardSchema
from headrace.storage.store.store import Store

_KEPT_BYTES = 64 << 20  # arbitrary: the headers of 1000 shards of 64 MiB with samples of 4 KiB
_MAX_HEADER_BYTES = 4 << 20  # a larger header is read in parts, each with its block


class Headers:
    """The headers of one dataset's shards. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: LruCache[str, NDArray[np.int64]] = LruCache(
            max_bytes=_KEPT_BYTES, size=lambda offsets: offsets.nbytes
        )
        self._described: set[str] = set()  # shards whose headers are not kept, but were compared

    def offsets(
        self, name: str, schema: ShardSchema, *, counts: tuple[int, int], samples: tuple[int, int]
    ) -> NDArray[np.int64]:
        """Return the places of samples ``[start, stop)`` in an uncompressed shard.

        Args:
            name: The name of the shard.
            schema: What the index says about its columns; compared with the header.
            counts: The number of its samples, and its size in bytes.
            samples: The first sample, and the one after the last.

        Returns:
            ``(stop - start + 1,) int64``, ascending, inside the shard.

        Raises:
            DescriptionError: The header gives other columns than the index.
            DamageError: The header does not match the shard.
            ObjectNotFoundError: There is no such shard.
        """
        (sample_count, raw_bytes), (start, stop) = counts, samples
        header = header_bytes(sample_count)
        if header > _MAX_HEADER_BYTES:
            self._compare_once(name, schema, sample_count, raw_bytes)
            offset = WORD.itemsize * (start + 1)
            wanted = WORD.itemsize * (stop - start + 1)
            words = self._read(name, offset=offset, length=wanted)
            return decode_offsets(words, low=header, high=raw_bytes)
        offsets = self._kept.get(name, lambda: self._whole(name, schema, sample_count, raw_bytes))
        return offsets[start : stop + 1]

    def forget(self, name: str) -> None:
        """Drop the header of a shard that may be damaged."""
        self._described.discard(name)
        self._kept.drop(name)

    def _whole(
        self, name: str, schema: ShardSchema, sample_count: int, raw_bytes: int
    ) -> NDArray[np.int64]:
        header = header_bytes(sample_count)
        wanted = min(raw_bytes, header + expected_bytes(schema))
        content = self._read(name, offset=0, length=wanted)
        check_count(content[: WORD.itemsize], sample_count)
        offsets = decode_offsets(content[WORD.itemsize : header], low=header, high=raw_bytes)
        if offsets[-1] != raw_bytes:
            raise DamageError(f"the last sample ends at {offsets[-1]}, but the file at {raw_bytes}")
        self._compare(name, schema, content[header:], (header, int(offsets[0])))
        return offsets

    def _compare_once(
        self, name: str, schema: ShardSchema, sample_count: int, raw_bytes: int
    ) -> None:
        if name in self._described:
            return
        header = header_bytes(sample_count)
        words = self._read(name, offset=0, length=2 * WORD.itemsize)
        check_count(words[: WORD.itemsize], sample_count)
        [first] = decode_offsets(words[WORD.itemsize :], low=header, high=raw_bytes).tolist()
        self._compare(name, schema, b"", (header, first))
        self._described.add(name)

    def _compare(self, name: str, schema: ShardSchema, known: bytes, span: tuple[int, int]) -> None:
        """Compare the bytes ``span`` of a shard with the index; its first ones may be known."""
        start, stop = span
        length = stop - start
        check_length(length)
        known = known[:length]
        if len(known) < length:
            known += self._read(name, offset=start + len(known), length=length - len(known))
        check_description(known, schema)

    def _read(self, name: str, *, offset: int, length: int) -> bytes:
        content = self._store.read(name, offset=offset, length=length)
        if len(content) != length:
            raise DamageError(
                f"{len(content)} bytes found from byte {offset} of the header, {length} expected"
            )
        return content
