"""The `webdataset` source as the registry of sources asks it."""

from __future__ import annotations

from itertools import islice

from headrace.errors import NotADatasetError
from headrace.storage._source import Place, SourceOptions
from headrace.storage.parquet._objects import open_files
from headrace.storage.webdataset._dataset import WebDataset
from headrace.storage.webdataset._index import build_index, is_shard_name

MARK = "*.tar"
_LOOKED_AT = 1000  # one page of a listing of S3


def detect(place: Place) -> bool:
    """Tell whether a look under the URL finds tar files."""
    files = open_files(place.url, options=place.options)
    try:
        return any(is_shard_name(entry.name) for entry in islice(files.entries(), _LOOKED_AT))
    finally:
        files.close()


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> WebDataset:
    """Open the tar files; reads every header of every one."""
    del options
    files = open_files(place.url, options=place.options)
    try:
        index = build_index(files)
        _check_fingerprint(index.fingerprint, fingerprint, files.url)
    except BaseException:
        files.close()
        raise
    place.store.close()
    return WebDataset(files, index)


def _check_fingerprint(found: str, wanted: str | None, url: str) -> None:
    if wanted is not None and wanted != found:
        raise NotADatasetError(
            f"{url} has fingerprint {found}, wanted is {wanted[:100]}; tar files have no older "
            "versions, so restore the files or start anew",
            url=url,
            fingerprint=wanted[:100],
        )
