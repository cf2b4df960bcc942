"""The `arrow` source: our own shards, or a stored index, found by ``headrace.json``."""

from __future__ import annotations

from headrace.errors import NotADatasetError
from headrace.storage.dataset.dataset import Dataset
from headrace.storage.dataset.pointer import IndexPointer, Pointer, VersionEntry
from headrace.storage.dataset.read_manifest import read_any_pointer, read_manifest
from headrace.storage.open.indexed import open_indexed
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.source.other_kinds import has_object
from headrace.storage.source.source import OpenDataset, Place, SourceOptions

MARK = POINTER_NAME


def detect(place: Place) -> bool:
    """Return whether there is a ``headrace.json``."""
    return has_object(place.store, POINTER_NAME)


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> OpenDataset:
    """Open a version with two reads for any number of blocks, or a source by its index."""
    pointer, _ = read_any_pointer(place.store)
    if isinstance(pointer, IndexPointer):
        return open_indexed(place, pointer, options, fingerprint=fingerprint)
    if options.index_of is not None:
        raise NotADatasetError(
            f"{place.store.url} is not a stored index but a dataset of its own, so it is not one "
            f"of {options.index_of}; leave out the source",
            url=place.store.url,
        )
    entry = _chosen(pointer, fingerprint, place.store.url)
    return Dataset(place.store, entry, manifest=read_manifest(place.store, entry))


def _chosen(pointer: Pointer, fingerprint: str | None, url: str) -> VersionEntry:
    if fingerprint is None:
        return pointer.current
    for entry in reversed(pointer.versions):
        if entry.fingerprint == fingerprint:
            return entry
    known = ", ".join(entry.fingerprint for entry in pointer.versions[-5:])
    raise NotADatasetError(
        f"{url} has no version {fingerprint[:100]}; its latest versions are {known}",
        url=url,
        fingerprint=fingerprint[:100],
    )
