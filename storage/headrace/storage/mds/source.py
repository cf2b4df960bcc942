"""The `mds` source: datasets of mosaicml-streaming, found by ``index.json``."""

from __future__ import annotations

from headrace.errors import NotADatasetError
from headrace.storage.mds.dataset import MdsDataset
from headrace.storage.mds.index import MAX_INDEX_BYTES, decode_index
from headrace.storage.mds.stored_index import (
    decode_stored_index,
    open_by_index,
    stored_index_of,
)
from headrace.storage.source.kinds import MDS_INDEX_NAME
from headrace.storage.source.other_kinds import has_object
from headrace.storage.source.source import Index, Place, Progress, SourceOptions

MARK = MDS_INDEX_NAME


def detect(place: Place) -> bool:
    """Return whether there is an ``index.json``."""
    return has_object(place.store, MDS_INDEX_NAME)


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> MdsDataset:
    """Open the dataset with one read, and reads of samples if arrays store their own type."""
    store = place.store
    index = decode_index(
        store.read(MDS_INDEX_NAME, length=MAX_INDEX_BYTES + 1),
        place=f"{store.url}/{MDS_INDEX_NAME}",
    )
    if fingerprint is not None and fingerprint != index.fingerprint:
        raise NotADatasetError(
            f"{store.url} has no version {fingerprint[:100]}; its only version is "
            f"{index.fingerprint}",
            url=store.url,
            fingerprint=fingerprint[:100],
        )
    return MdsDataset(
        store, index, allow_pickle=options.allow_pickle, mixed_arrays=options.mixed_arrays
    )


def make_index(place: Place, options: SourceOptions, *, progress: Progress | None) -> Index:
    """Read ``index.json``."""
    del options, progress  # one read
    index, content = stored_index_of(place)
    return Index(place.store.url, index.fingerprint, int(index.sample_counts.sum()), content)


def open_index(content: bytes, place: Place, options: SourceOptions, *, where: str) -> MdsDataset:
    """Open the dataset if ``index.json`` has not changed."""
    return open_by_index(
        decode_stored_index(content, place=where),
        place.store,
        allow_pickle=options.allow_pickle,
        mixed_arrays=options.mixed_arrays,
    )
