"""Cache the offsets of samples in shards that are read by ranges."""

from __future__ import annotations

import threading
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from headrace.storage.mds.damage import DamageError
from headrace.storage.mds.samples import WORD, decode_offsets, header_bytes
from headrace.storage.mds.shard import check_count
from headrace.storage.store.store import Store

_KEPT_BYTES = 64 << 20  # arbitrary: the headers of 1000 shards of 64 MiB with samples of 4 KiB
_MAX_HEADER_BYTES = 4 << 20  # a larger header is read in parts, each with its block


class Headers:
    """The headers of one dataset's shards. Safe to use from several threads.

    If two threads miss the same header, both read it, and one result is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self._kept_bytes = 0

    def offsets(
        self, name: str, *, sample_count: int, raw_bytes: int, start: int, stop: int
    ) -> NDArray[np.int64]:
        """Return the places of samples ``[start, stop)`` in an uncompressed shard.

        Args:
            name: The name of the shard.
            sample_count: The sample count of the shard.
            raw_bytes: Size of the shard.
            start: First sample.
            stop: The one after the last.

        Returns:
            ``(stop - start + 1,) int64``, ascending, inside the shard.

        Raises:
            DamageError: The header does not match the shard.
            ObjectNotFoundError: There is no such shard.
        """
        header = header_bytes(sample_count)
        if header > _MAX_HEADER_BYTES:
            offset = WORD.itemsize * (start + 1)
            wanted = WORD.itemsize * (stop - start + 1)
            words = self._read(name, offset=offset, length=wanted)
            return decode_offsets(words, low=header, high=raw_bytes)
        with self._lock:
            offsets = self._kept.get(name)
            if offsets is not None:
                self._kept.move_to_end(name)
        if offsets is None:
            offsets = self._whole(name, sample_count, raw_bytes)
            self._keep(name, offsets)
        return offsets[start : stop + 1]

    def forget(self, name: str) -> None:
        """Drop the header of a shard that may be damaged."""
        with self._lock:
            offsets = self._kept.pop(name, None)
            if offsets is not None:
                self._kept_bytes -= offsets.nbytes

    def _whole(self, name: str, sample_count: int, raw_bytes: int) -> NDArray[np.int64]:
        header = header_bytes(sample_count)
        content = self._read(name, offset=0, length=header)
        check_count(content[: WORD.itemsize], sample_count)
        offsets = decode_offsets(content[WORD.itemsize :], low=header, high=raw_bytes)
        if offsets[-1] != raw_bytes:
            raise DamageError(f"the last sample ends at {offsets[-1]}, but the file at {raw_bytes}")
        return offsets

    def _read(self, name: str, *, offset: int, length: int) -> bytes:
        content = self._store.read(name, offset=offset, length=length)
        if len(content) != length:
            raise DamageError(
                f"{len(content)} bytes found from byte {offset} of the header, {length} expected"
            )
        return content

    def _keep(self, name: str, offsets: NDArray[np.int64]) -> None:
        self.forget(name)
        with self._lock:
            self._kept[name] = offsets
            self._kept_bytes += offsets.nbytes
            while self._kept_bytes > _KEPT_BYTES and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._kept_bytes -= dropped.nbytes
