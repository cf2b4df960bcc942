"""Store the index of a source at another place, and open the source with it.

Contract of `store_index`:

1. Success: ``headrace.json`` holds the fingerprint of the source, and names the index with its
   digest.
2. Failure or crash before the last write: nothing has changed, except that a file may remain for
   `plan_gc` to find.
3. Conflict: another writer came first; its index stands, and the caller gets an error.

Whoever may write an index must not choose what its readers read. So an index never says where a
source elsewhere is: whoever opens it does. Only for a source in the same folder or below it, the
index contains the path.

A source whose files have changed is refused when it is opened or, if only reading shows the change,
when it is read. The error names the file.
"""

from __future__ import annotations

import contextlib

from headrace.errors import (
    CommitConflictError,
    ConfigurationError,
    DatasetExistsError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
    StoreRefusedError,
    WorldError,
)
from headrace.storage.dataset.pointer import IndexPointer, OldIndexError, TableFile
from headrace.storage.dataset.publish import now_text, table_stem, tables_held, write_pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_table
from headrace.storage.open.installed import indexed_source, indexed_sources
from headrace.storage.packing.stored import digest_of
from headrace.storage.source.kinds import POINTER_NAME, refuse_absent
from headrace.storage.source.other_kinds import refuse_other_kinds
from headrace.storage.source.source import Index, OpenDataset, Place, Progress, SourceOptions
from headrace.storage.store.names import name_problem
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions
from headrace.storage.store.store import Store, Version


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
        ManifestCorruptError: ``headrace.json`` at ``url`` is damaged.
        CommitConflictError: Another writer came in between.
    """
    asked = source_options or SourceOptions()
    store = open_store(url)
    try:
        replaced = _replaced(store)
        path = _path_below(store, open_store(source_url).url)
        if path != "":
            refuse_other_kinds(store, POINTER_NAME, but=path)
        name, indexed = _index_of(source_url, asked, progress)
        stem = table_stem(indexed.fingerprint)
        file = f"{stem}.index"
        pointer = IndexPointer(
            source=name,
            path=_path_below(store, indexed.url),
            fingerprint=indexed.fingerprint,
            created=now_text(),
            sample_count=indexed.sample_count,
            index=TableFile(file, len(indexed.content)),
            digest=digest_of(indexed.content),
        )
        with tables_held(store, stem):
            store.write(file, indexed.content)
            try:
                write_pointer(store, pointer, replaced=replaced)
            except CommitConflictError:
                with contextlib.suppress(WorldError):
                    store.delete(file)
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
        ConfigurationError: Nobody says where the files of the index are.
        ManifestCorruptError: The index is damaged.
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
    where = f"{place.store.url}/{pointer.index.name}"
    content = read_table(place.store, pointer.index)
    found = digest_of(content)
    if found != pointer.digest:
        raise ManifestCorruptError(
            f"index {where}: digest {found} found, {pointer.digest} expected; store it again with "
            "`headrace index`",
            place=where,
        )
    source = _source_of(place, pointer, options)
    try:
        layout = indexed_source(pointer.source)
        dataset = layout.open_index(content, source, options, where=where)
    except BaseException:
        source.store.close()
        raise
    if dataset.fingerprint != pointer.fingerprint:
        dataset.close()
        raise ManifestCorruptError(
            f"index {where}: fingerprint {dataset.fingerprint} found, {pointer.fingerprint} "
            "expected; store it again with `headrace index`",
            place=where,
        )
    if source.store is not place.store:
        place.store.close()
    return dataset


def _source_of(place: Place, pointer: IndexPointer, options: SourceOptions) -> Place:
    """Return where the files of an index are: where the operator says, or below the index."""
    if options.index_of is not None:
        store = open_store(options.index_of, options=place.options)
        return Place(options.index_of, store, place.options)
    if pointer.path is None:
        url = place.store.url
        raise ConfigurationError(
            f"{url} is the index of files elsewhere, and an index does not say where, because "
            f"whoever writes it must not choose what its readers read; name them: '{url} from "
            "SOURCE', also in `headrace serve NAME='INDEX from SOURCE'`, or as source.index_of in "
            "the configuration",
            url=url,
        )
    store = place.store.below(pointer.path) if pointer.path else place.store
    return Place(store.url, store, place.options)


def _path_below(store: Store, source_url: str) -> str | None:
    """Return the path of a source below the place of its index, or `None` if it is elsewhere."""
    if source_url == store.url:
        return ""
    path = source_url.removeprefix(f"{store.url}/")
    if path == source_url or "::" in source_url or name_problem(path) is not None:
        return None
    try:
        store.below(path).close()
    except StoreRefusedError:  # a link that leads out of the folder
        return None
    return path


def _index_of(target: str, asked: SourceOptions, progress: Progress | None) -> tuple[str, Index]:
    """Return the name of the source at a URL, and its index."""
    place = Place(target, open_store(target), StoreOptions())
    try:
        for name, source in indexed_sources().items():
            if asked.source in {None, name} and source.detect(place):
                return name, source.make_index(place, asked, progress=progress)
    finally:
        place.store.close()
    refuse_absent(target)
    raise NotADatasetError(
        f"{target} contains neither an MDS dataset nor Parquet files nor WebDataset tars; other "
        "datasets have no index to store",
        url=target,
    )


def _replaced(store: Store) -> Version | None:
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError:
        return None
    except OldIndexError:
        return store.read_versioned(POINTER_NAME)[1]
    if not isinstance(pointer, IndexPointer):
        raise DatasetExistsError(
            f"{store.url} contains a dataset; store the index elsewhere", url=store.url
        )
    return version
