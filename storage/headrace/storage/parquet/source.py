"""The `parquet` source for the registry of sources."""

from __future__ import annotations

from itertools import islice

from headrace.errors import NotADatasetError
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.layout import file_at, is_delta
from headrace.storage.parquet.open import open_parquet
from headrace.storage.source.kinds import DELTA_LOG_FOLDER, is_parquet_name
from headrace.storage.source.source import Place, SourceOptions

MARK = f"*.parquet or {DELTA_LOG_FOLDER}"
_LISTED_NAMES = 1000  # one page of a listing of S3


def detect(place: Place) -> bool:
    """Return whether the URL is a Parquet file, or a listing finds Parquet files or a Delta log."""
    seen = list(islice(place.store.list_entries(), _LISTED_NAMES))
    if seen:
        return is_delta(seen) or any(is_parquet_name(entry.name) for entry in seen)
    files, entry = file_at(place.url, options=place.options)
    files.close()
    return entry is not None and is_parquet_name(entry.name)


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> ParquetDataset:
    """Open the files, reading every footer."""
    dataset = open_parquet(
        place.url,
        options=place.options,
        table_version=options.table_version,
        store=place.store,
    )
    if fingerprint is not None and dataset.fingerprint != fingerprint:
        dataset.close()
        raise NotADatasetError(
            f"{place.url} has fingerprint {dataset.fingerprint}, expected {fingerprint[:100]}; "
            "Parquet files have no older versions, so restore the files or start over",
            url=place.url,
            fingerprint=fingerprint[:100],
        )
    return dataset
