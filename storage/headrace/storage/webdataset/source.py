"""The `webdataset` source for the registry of sources."""

from __future__ import annotations

from itertools import islice

from headrace.errors import NotADatasetError
from headrace.storage.source.kinds import is_tar_name
from headrace.storage.source.source import Place, SourceOptions
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import open_store
from headrace.storage.webdataset.dataset import WebDataset
from headrace.storage.webdataset.index import Progress, build_index

MARK = "*.tar"
_LISTED_NAMES = 1000  # one page of a listing of S3


def detect(place: Place) -> bool:
    """Return whether a listing of the URL finds tar files."""
    seen = islice(place.store.list_entries(), _LISTED_NAMES)
    return any(is_tar_name(entry.name) for entry in seen)


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
