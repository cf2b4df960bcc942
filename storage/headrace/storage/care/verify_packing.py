"""Read all that is stored for packing a version's documents, and list what is wrong with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from headrace.errors import ManifestCorruptError, StoreRefusedError
from headrace.storage.packing.pointer import (
    PACKING_FOLDER,
    PackingPointer,
    packing_damage,
    packing_name,
)
from headrace.storage.packing.stored import StoredLengths, read_pointer, read_row_counts
from headrace.storage.source.source import OpenDataset
from headrace.storage.store.store import Store

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class PackingFault:
    """A file in ``packing/`` that is damaged, missing, or not of this version.

    Attributes:
        file: Its name in the store.
        message: What was found, what was expected, and what to do.
    """

    file: str
    message: str


def verify_packing(store: Store, dataset: OpenDataset) -> Iterator[PackingFault]:
    """Read every file that packing a version needs, and yield a fault for each bad one.

    Memory is bounded by a group's lengths and the tables of groups.

    Args:
        store: The store of the dataset.
        dataset: The version.

    Raises:
        StoreRefusedError: The store refused the request.
        StoreUnavailableError: The store cannot be reached.
    """
    names = _names(store, dataset.fingerprint)
    costs = sorted(name for name in names if name.rpartition("/")[2].startswith("cost-"))
    packing = packing_name(dataset.fingerprint)
    for name in [packing, *costs]:
        try:
            pointer = read_pointer(store, name, dataset.fingerprint)
        except ManifestCorruptError as error:
            yield PackingFault(name, error.message)
            continue
        if pointer is not None:
            yield from _verify(store, dataset, name, pointer)
        elif names and not costs:
            yield _fault(name, store, "it is missing, but other files of its folder are there")


def _verify(
    store: Store, dataset: OpenDataset, name: str, pointer: PackingPointer
) -> Iterator[PackingFault]:
    is_cost = name != packing_name(dataset.fingerprint)
    problem = _problem(pointer, dataset)
    if is_cost and name != packing_name(dataset.fingerprint, pointer.column):
        problem = f"column {pointer.column[:100]!r} found, whose costs have another name"
    if problem is not None:
        yield _fault(name, store, problem)
    try:
        stored = StoredLengths(store, pointer)
    except ManifestCorruptError as error:
        yield PackingFault(pointer.groups.name, error.message)
        return
    try:
        _check_lengths(store, pointer, stored)
    except ManifestCorruptError as error:
        yield PackingFault(pointer.lengths.name, error.message)
    for table in pointer.rows:
        try:
            read_row_counts(store, table, group_count=len(stored.groups))
        except ManifestCorruptError as error:
            yield PackingFault(table.counts.name, error.message)


def _names(store: Store, fingerprint: str) -> list[str]:
    with suppress(StoreRefusedError):  # whoever may not list has read all whose names are known
        return list(store.list(f"{PACKING_FOLDER}/{fingerprint}/"))
    return []


def _problem(pointer: PackingPointer, dataset: OpenDataset) -> str | None:
    """Return what in ``packing.json`` contradicts its version."""
    if pointer.sample_count != dataset.sample_count:
        return f"{pointer.sample_count} documents found, but the version has {dataset.sample_count}"
    for name in (pointer.column, *pointer.alike):
        if name not in dataset.schema.names:
            return f"column {name[:100]!r} found, which the version does not have"
    return None


def _check_lengths(store: Store, pointer: PackingPointer, stored: StoredLengths) -> None:
    digest, empty = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
    file = pointer.lengths
    for group, item_bytes in enumerate(stored.groups["item_bytes"].tolist()):
        lengths = stored.read_group(group)
        empty += int((lengths == 0).sum())
        digest.update(lengths.astype(f"<u{item_bytes}").tobytes())
    # The last byte and one more, since some stores refuse to read from the very end.
    found = store.read(file.name, offset=max(0, file.stored_bytes - 1), length=2)
    stated, read = (file.digest, pointer.empty_count), (digest.hexdigest(), empty)
    if len(found) > 1 or stated != read:
        size = f"{'more' if len(found) > 1 else file.stored_bytes} bytes"
        raise packing_damage(
            f"{store.url}/{file.name}",
            f"{size} with digest {read[0]} and {read[1]} empty documents found, "
            f"{file.stored_bytes} with {stated[0]} and {stated[1]} expected",
        )


def _fault(name: str, store: Store, found: str) -> PackingFault:
    return PackingFault(name, packing_damage(f"{store.url}/{name}", found).message)
