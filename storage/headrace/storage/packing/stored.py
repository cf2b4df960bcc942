"""Read what is stored for packing the documents of a version."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ObjectNotFoundError, StoreRefusedError
from headrace.storage.packing.groups import decode_groups, decode_page, page_edges
from headrace.storage.packing.pointer import (
    PackingPointer,
    RowTable,
    StoredFile,
    decode_packing,
    packing_damage,
    packing_name,
)
from headrace.storage.store.store import Store, may_be_missing

_DIGEST_BYTES = 16
_MAX_TABLE_BYTES = 1 << 32
# The number of groups, of 64 KiB as stored and two or four times as much in memory.
_KEPT_PAGES = 128


def read_packing(store: Store, fingerprint: str, *, cost: str = "") -> PackingPointer | None:
    """Return what is stored for a version; None if nothing is.

    Args:
        store: The store of the dataset.
        fingerprint: The version.
        cost: A column whose costs are asked for; empty for the lengths of documents.

    Raises:
        ManifestCorruptError: It is damaged.
    """
    name = packing_name(fingerprint, cost)
    found = read_pointer(store, name, fingerprint)
    if found is not None and cost and found.column != cost:
        raise packing_damage(
            f"{store.url}/{name}", f"column {found.column!r:.50} found, {cost!r:.50} expected"
        )
    return found


def read_pointer(store: Store, name: str, fingerprint: str) -> PackingPointer | None:
    """Return the contents of one ``packing.json``, or one file of costs; see `read_packing`."""
    try:
        content = store.read(name, length=(1 << 20) + 1)
    except (ObjectNotFoundError, StoreRefusedError) as error:
        if not may_be_missing(error):
            raise
        return None
    return decode_packing(content, fingerprint=fingerprint, place=f"{store.url}/{name}")


class StoredLengths:
    """The lengths of a version's documents; safe to call from several threads.

    Args:
        store: The store of the files.
        pointer: The contents of ``packing.json``.

    Attributes:
        groups: The table of groups.
        digest: The digest of the lengths of all documents.

    Raises:
        ManifestCorruptError: The table is damaged or missing.
    """

    def __init__(self, store: Store, pointer: PackingPointer) -> None:
        self._store = store
        self._file = pointer.lengths
        self.digest = pointer.lengths.digest
        content = read_checked(store, pointer.groups)
        self.groups = decode_groups(
            content, sample_count=pointer.sample_count, place=f"{store.url}/{pointer.groups.name}"
        )
        self._edges = page_edges(self.groups)
        self._firsts = np.cumsum(self.groups["sample_count"].astype(np.int64))
        self._firsts -= self.groups["sample_count"]
        if self._edges[-1] != pointer.lengths.stored_bytes:
            raise packing_damage(
                f"{store.url}/{pointer.lengths.name}",
                f"{pointer.lengths.stored_bytes} bytes found, {self._edges[-1]} of groups expected",
            )
        self.of_group = functools.lru_cache(_KEPT_PAGES)(self.read_group)

    def of_samples(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths of samples, ``(n,) int64``.

        Args:
            sample_ids: ``(n,) int64``, each one of the dataset's.

        Raises:
            ManifestCorruptError: They are damaged or missing.
        """
        groups = np.searchsorted(self._firsts, sample_ids, side="right") - 1
        # Sorted, so that the samples of a group are together and each group is read once.
        by_group = np.argsort(groups, kind="stable")
        distinct, starts = np.unique(groups[by_group], return_index=True)
        lengths = np.empty(sample_ids.size, np.int64)
        for group, own in zip(distinct.tolist(), np.split(by_group, starts[1:]), strict=False):
            lengths[own] = self.of_group(group)[sample_ids[own] - self._firsts[group]]
        return lengths

    def read_group(self, group: int) -> NDArray[np.int64]:
        """Read the lengths of one group with one ranged read; `of_group` caches the latest ones.

        Raises:
            ManifestCorruptError: They are damaged or missing.
        """
        start, end = self._edges[group : group + 2].tolist()
        place = f"{self._store.url}/{self._file.name} at byte {start}"
        try:
            content = self._store.read(self._file.name, offset=start, length=end - start)
        except ObjectNotFoundError as error:
            raise packing_damage(place, "it is missing") from error
        return decode_page(content, self.groups[group], place=place)


def read_row_counts(store: Store, table: RowTable, *, group_count: int) -> NDArray[np.int64]:
    """Return the number of rows of each group, ``(groups,) int64``.

    Raises:
        ManifestCorruptError: They are damaged or missing.
    """
    counts = np.frombuffer(read_checked(store, table.counts), "<u4").astype(np.int64)
    if len(counts) != group_count or int(counts.sum()) != table.row_count:
        raise packing_damage(
            f"{store.url}/{table.counts.name}",
            f"{len(counts)} counts with sum {counts.sum()} found, {group_count} with sum "
            f"{table.row_count} expected",
        )
    return counts


def read_checked(store: Store, file: StoredFile) -> bytes:
    """Return a whole file, verified.

    Raises:
        ManifestCorruptError: It is damaged or missing.
    """
    place = f"{store.url}/{file.name}"
    if file.stored_bytes > _MAX_TABLE_BYTES:
        raise packing_damage(place, f"{file.stored_bytes} bytes stated, which is too many")
    try:
        content = store.read(file.name, length=file.stored_bytes + 1)
    except ObjectNotFoundError as error:
        raise packing_damage(place, "it is missing") from error
    found = digest_of(content)
    if len(content) != file.stored_bytes or found != file.digest:
        raise packing_damage(
            place,
            f"{len(content)} bytes with digest {found} found, {file.stored_bytes} with "
            f"{file.digest} expected",
        )
    return content


def digest_of(content: bytes) -> str:
    """Return BLAKE2b-128 of some bytes, 32 hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
