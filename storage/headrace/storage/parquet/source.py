"""The `parquet` source for the registry of sources."""

from __future__ import annotations

from headrace.errors import BadArgumentError, NotADatasetError
from headrace.storage.parquet.dataset import ParquetDataset
from headrace.storage.parquet.index_codec import decode_index, encode_index
from headrace.storage.parquet.layout import is_parquet_file
from headrace.storage.parquet.open import open_parquet
from headrace.storage.source.kinds import DELTA_LOG_FOLDER
from headrace.storage.source.source import Index, Place, Progress, SourceOptions

MARK = f"*.parquet or {DELTA_LOG_FOLDER}"


def detect(place: Place) -> bool:
    """Return whether the URL is a Parquet file, or a listing finds Parquet files or a Delta log."""
    # In this order, because a file needs no right to list.
    if is_parquet_file(place.url, options=place.options):
        return True
    return bool(place.kinds.delta() or place.kinds.parquet())


def open_at(place: Place, options: SourceOptions, *, fingerprint: str | None) -> ParquetDataset:
    """Open the files, reading every footer."""
    dataset = open_parquet(
        place.url,
        options=place.options,
        table_version=options.table_version,
        missing_as_null=options.missing_as_null,
        table_prefixes=options.table_prefixes,
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


def make_index(place: Place, options: SourceOptions, *, progress: Progress | None) -> Index:
    """Read every footer."""
    with open_parquet(
        place.url,
        table_version=options.table_version,
        missing_as_null=options.missing_as_null,
        table_prefixes=options.table_prefixes,
        progress=progress,
    ) as dataset:
        content = encode_index(dataset.index)
        return Index(dataset.url, dataset.fingerprint, dataset.sample_count, content)


def open_index(
    content: bytes, place: Place, options: SourceOptions, *, where: str
) -> ParquetDataset:
    """Open the files if they have not changed."""
    index = decode_index(content, place=where)
    if options.table_version not in {None, index.table_version}:
        raise BadArgumentError(
            f"version {options.table_version} of the table is requested, but {where} is for "
            f"version {index.table_version}; store that one with `headrace index`, or open "
            f"{place.url}",
            field="table_version",
        )
    return open_parquet(
        place.url,
        options=place.options,
        index=index,
        table_prefixes=options.table_prefixes,
        store=place.store,
    )
