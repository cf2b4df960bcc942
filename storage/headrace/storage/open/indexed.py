"""Store the index of a source at another place, and open the source with it.

Contract of `store_index`:

1. Success: ``headrace.json`` names the source, its fingerprint, and the index with its digest.
2. Failure or crash before the last write: nothing has changed, except that a file may remain for
   `plan_gc` to find.
3. Conflict: another writer came first; its index stands, and the caller gets an error.

A source whose files have changed is refused when it is opened or, if only reading shows the change,
when it is read. The error names the file.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    DatasetExistsError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
    WorldError,
)
from headrace.storage.dataset.pointer import IndexPointer, TableFile
from headrace.storage.dataset.publish import now_text, table_stem, write_pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_table
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.source.other_kinds import refuse_other_kinds
from headrace.storage.source.source import OpenDataset, Place, SourceOptions
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store, Version, open_store

Progress = Callable[[int, int], None]
_DIGEST_BYTES = 16
_LOCAL_SCHEMES = ("", "file", "local")


def store_index(
    source_url: str,
    url: str,
    *,
    source_options: SourceOptions | None = None,
    progress: Progress | None = None,
) -> IndexPointer:
    """Read the index of a source, as opening it would, and store it at another URL.

    Args:
        source_url: An MDS dataset, Parquet files, a Delta table, or WebDataset tars.
        url: Where to store the index; may be the same URL.
        source_options: The layout of the source, and the version of a table.
        progress: Called with the number of Parquet or tar files read, and with their total number.

    Returns:
        The contents of ``headrace.json`` at ``url``.

    Raises:
        NotADatasetError: There is nothing to index at ``source_url``.
        DatasetExistsError: ``url`` holds a dataset of headrace's own shards, or one of another kind
            that is not the source.
        CommitConflictError: Another writer came in between.
    """
    asked = source_options or SourceOptions()
    target = _absolute(source_url)
    store = open_store(url)
    try:
        _refuse_unreachable(target, store.url)
        replaced = _replaced(store)
        if not _is_same_place(target, url):
            refuse_other_kinds(store, POINTER_NAME)
        indexed = _index_of(target, asked, progress)
        name = f"{table_stem(indexed.fingerprint)}.index"
        pointer = IndexPointer(
            source=indexed.source,
            target=target,
            fingerprint=indexed.fingerprint,
            created=now_text(),
            sample_count=indexed.sample_count,
            index=TableFile(name, len(indexed.content)),
            digest=_digest(indexed.content),
        )
        store.write(name, indexed.content)
        try:
            write_pointer(store, pointer, replaced=replaced)
        except CommitConflictError:
            with contextlib.suppress(WorldError):
                store.delete(name)
            raise
        return pointer
    finally:
        store.close()


def open_indexed(
    place: Place, pointer: IndexPointer, options: SourceOptions, *, fingerprint: str | None
) -> OpenDataset:
    """Open a source with the index that is stored at ``place``.

    Args:
        place: The place of the index; its store is closed if this returns.
        pointer: The contents of ``headrace.json`` there.
        options: The operator's options.
        fingerprint: The version to open, or `None`.

    Raises:
        NotADatasetError: The index has another fingerprint.
        ManifestCorruptError: The index is damaged, or names a forbidden place.
        ShardCorruptError: A file has changed since it was indexed; the message names it.
        ObjectNotFoundError: A file is gone; the message names it.
    """
    if fingerprint is not None and fingerprint != pointer.fingerprint:
        raise NotADatasetError(
            f"{place.store.url} has no version {fingerprint[:100]}; its only version is "
            f"{pointer.fingerprint}",
            url=place.store.url,
            fingerprint=fingerprint[:100],
        )
    try:
        _refuse_unreachable(pointer.target, place.store.url)
    except BadArgumentError as error:
        raise ManifestCorruptError(error.message, place=place.store.url) from error
    where = f"{place.store.url}/{pointer.index.name}"
    content = read_table(place.store, pointer.index)
    found = _digest(content)
    if found != pointer.digest:
        raise ManifestCorruptError(
            f"index {where}: digest {found} found, {pointer.digest} expected; store it again with "
            "`headrace index`",
            place=where,
        )
    dataset = _OPENERS[pointer.source](
        content, pointer.target, place=place, where=where, options=options
    )
    if dataset.fingerprint != pointer.fingerprint:
        dataset.close()
        raise ManifestCorruptError(
            f"index {where}: fingerprint {dataset.fingerprint} found, {pointer.fingerprint} "
            "expected; store it again with `headrace index`",
            place=where,
        )
    place.store.close()
    return dataset


@dataclass(frozen=True, slots=True)
class _Indexed:
    source: str
    fingerprint: str
    sample_count: int
    content: bytes


def _index_of(target: str, asked: SourceOptions, progress: Progress | None) -> _Indexed:
    # Sources are imported where they are used, so that others cost nothing.
    from headrace.storage import parquet, webdataset  # noqa: PLC0415
    from headrace.storage.mds import source as mds  # noqa: PLC0415

    place = Place(target, open_store(target), StoreOptions())
    try:
        if asked.source in {None, "mds"} and mds.detect(place):
            return _index_mds(place)
        if asked.source in {None, "parquet"} and parquet.detect(place):
            return _index_parquet(target, asked, progress)
        if asked.source in {None, "webdataset"} and webdataset.detect(place):
            return _index_webdataset(place, progress)
    finally:
        place.store.close()
    raise NotADatasetError(
        f"{target} contains neither an MDS dataset nor Parquet files nor WebDataset tars; other "
        "datasets have no index to store",
        url=target,
    )


def _index_mds(place: Place) -> _Indexed:
    from headrace.storage.mds.stored_index import stored_index_of  # noqa: PLC0415

    index, content = stored_index_of(place)
    return _Indexed("mds", index.fingerprint, int(index.sample_counts.sum()), content)


def _index_webdataset(place: Place, progress: Progress | None) -> _Indexed:
    from headrace.storage.webdataset import (  # noqa: PLC0415
        encode_stored_index,
        open_webdataset,
    )

    with open_webdataset(place.url, options=place.options, progress=progress) as dataset:
        content = encode_stored_index(dataset.index)
        return _Indexed("webdataset", dataset.fingerprint, dataset.sample_count, content)


def _index_parquet(target: str, asked: SourceOptions, progress: Progress | None) -> _Indexed:
    from headrace.storage.parquet import encode_index, open_parquet  # noqa: PLC0415

    with open_parquet(target, table_version=asked.table_version, progress=progress) as dataset:
        content = encode_index(dataset.index)
        return _Indexed("parquet", dataset.fingerprint, dataset.sample_count, content)


def _open_mds(
    content: bytes, target: str, *, place: Place, where: str, options: SourceOptions
) -> OpenDataset:
    from headrace.storage.mds.stored_index import (  # noqa: PLC0415
        decode_stored_index,
        open_by_index,
    )

    stored = decode_stored_index(content, place=where)
    return open_by_index(
        stored,
        target,
        options=place.options,
        allow_pickle=options.allow_pickle,
        mixed_arrays=options.mixed_arrays,
    )


def _open_parquet(
    content: bytes, target: str, *, place: Place, where: str, options: SourceOptions
) -> OpenDataset:
    from headrace.storage.parquet import decode_index, open_parquet  # noqa: PLC0415

    index = decode_index(content, place=where)
    if options.table_version not in {None, index.table_version}:
        raise BadArgumentError(
            f"version {options.table_version} of the table is requested, but {where} is for "
            f"version {index.table_version}; store that one with `headrace index`, or open "
            f"{target}",
            field="table_version",
        )
    return open_parquet(target, options=place.options, index=index)


def _open_webdataset(
    content: bytes, target: str, *, place: Place, where: str, options: SourceOptions
) -> OpenDataset:
    from headrace.storage.webdataset import (  # noqa: PLC0415
        decode_stored_index,
        open_by_index,
    )

    del options
    index = decode_stored_index(content, place=where)
    return open_by_index(index, target, options=place.options)


_OPENERS: Mapping[str, Callable[..., OpenDataset]] = {
    "mds": _open_mds,
    "parquet": _open_parquet,
    "webdataset": _open_webdataset,
}


def _replaced(store: Store) -> Version | None:
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError:
        return None
    if not isinstance(pointer, IndexPointer):
        raise DatasetExistsError(
            f"{store.url} contains a dataset; store the index elsewhere", url=store.url
        )
    return version


def _absolute(url: str) -> str:
    if "://" not in url:
        return str(Path(url).absolute())
    if urlsplit(url).password:
        raise BadArgumentError(
            "the URL of the source contains a password, which the index would show to all its "
            "readers; give it in the store's options",
            field="url",
        )
    return url


def _is_same_place(target: str, url: str) -> bool:
    return target.rstrip("/") == _absolute(url).rstrip("/")


def _refuse_unreachable(target: str, url: str) -> None:
    """Refuse a source on a local disk if its index is elsewhere.

    Other machines would not find the source. Also, whoever can write to a bucket must not choose
    which files of a server's disk are read.
    """
    if _is_local(target) and not _is_local(url):
        raise BadArgumentError(
            f"the index at {url} names {target[:500]}, a path on a local disk; an index in a store "
            "may only name sources in stores",
            field="url",
        )


def _is_local(url: str) -> bool:
    # fsspec chains file systems with `::`; the last one decides.
    return "://" not in url or any(
        urlsplit(part).scheme in _LOCAL_SCHEMES for part in url.split("::") if "://" in part
    )


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()
