"""The `webdataset` source for the registry of sources."""

from __future__ import annotations

from headrace.errors import NotADatasetError
from headrace.storage.source.source import Index, Place, Progress, SourceOptions
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.webdataset.dataset import WebDataset
from headrace.storage.webdataset.index import build_index
from headrace.storage.webdataset.stored_index import (
    decode_stored_index,
    encode_stored_index,
    open_by_index,
)

MARK = "*.tar"


def detect(place: Place) -> bool:
    """Return whether a listing of the URL finds tar files."""
    return bool(place.kinds.tar())


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> WebDataset:
    """Open the tar files, reading every header of every file."""
    del options
    dataset = WebDataset(place.store, build_index(place.store))
    _check_fingerprint(dataset.fingerprint, fingerprint, dataset.url)
    return dataset


def open_webdataset(
    url: str, *, options: StoreOptions, progress: Progress | None = None
) -> WebDataset:
    """Open the tar files at a URL, reading every header of every file.

    Args:
        url: A directory.
        options: The options of its store.
        progress: Called with the number of files read and of all files.

    Raises:
        NotADatasetError: There are no tar files, or no samples in them.
        ShardCorruptError: A file is damaged.
        ConfigurationError: A member is too large or sparse, or there are too many columns.
    """
    files = open_store(url, options=options)
    try:
        return WebDataset(files, build_index(files, progress=progress))
    except BaseException:
        files.close()
        raise


def _check_fingerprint(found: str, wanted: str | None, url: str) -> None:
    if wanted is not None and wanted != found:
        raise NotADatasetError(
            f"{url} has fingerprint {found}, expected {wanted[:100]}; tar files have no older "
            "versions, so restore the files or start over",
            url=url,
            fingerprint=wanted[:100],
        )


def make_index(place: Place, options: SourceOptions, *, progress: Progress | None) -> Index:
    """Read every header of every file."""
    del options
    with open_webdataset(place.url, options=place.options, progress=progress) as dataset:
        content = encode_stored_index(dataset.index)
        return Index(dataset.url, dataset.fingerprint, dataset.sample_count, content)


def open_index(content: bytes, place: Place, options: SourceOptions, *, where: str) -> WebDataset:
    """Open the files if they have not changed."""
    del options
    return open_by_index(decode_stored_index(content, place=where), place.store)
