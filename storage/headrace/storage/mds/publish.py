"""Publish MDS shards as a dataset: ``index.json`` is written last, and only if unchanged.

Contract:

1. Success: the index names the shards; readers of the old one are not affected, since no shard is
   removed.
2. Conflict: if another commit was first, it stays, and the caller gets an error.
3. Failure or crash before the last write: the dataset is unchanged.
4. If the answer to the last write was lost, the index is read back: if it is ours, the write has
   succeeded.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, get_args

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    DatasetExistsError,
    ObjectNotFoundError,
)
from headrace.storage.mds.index import Index, decode_index
from headrace.storage.mds.json import shard_objects
from headrace.storage.mds.writer import MdsShardEntry
from headrace.storage.source.kinds import MDS_INDEX_NAME
from headrace.storage.source.other_kinds import has_object, refuse_other_kinds
from headrace.storage.store.conditional import write_unless_changed
from headrace.storage.store.store import Store, Version

Mode = Literal["error", "overwrite", "append"]


def check_mds_mode(store: Store, mode: Mode) -> None:
    """Refuse arguments that `commit_mds` would refuse at the end of a long job.

    Raises:
        BadArgumentError: There is no such mode.
        DatasetExistsError: The mode is ``error`` and there is an index, or there is a dataset of
            another kind, in any mode.
    """
    if mode not in get_args(Mode):
        raise BadArgumentError(
            f"mode is {mode!r}, expected one of {', '.join(get_args(Mode))}", field="mode"
        )
    if mode == "error" and has_object(store, MDS_INDEX_NAME):
        raise _exists(store)
    refuse_other_kinds(store, MDS_INDEX_NAME)


def commit_mds(store: Store, shards: Sequence[MdsShardEntry], *, mode: Mode = "error") -> Index:
    """Publish shards that have been written.

    Args:
        store: The store of the shards.
        shards: The shards, in the order of sample ids.
        mode: What to do if there is an index: ``error`` refuses, ``overwrite`` replaces it,
            ``append`` adds the shards after its own.

    Returns:
        The new index.

    Raises:
        DatasetExistsError: See `check_mds_mode`.
        CommitConflictError: Another commit won.
        BadArgumentError: There is no such mode, there are no samples, or a name would occur twice.
        ManifestCorruptError: The index to append to is damaged.
    """
    check_mds_mode(store, mode)
    if not sum(shard.sample_count for shard in shards):
        raise BadArgumentError(
            f"no samples to write to {store.url}, and MosaicML's format cannot store columns "
            "without samples; expected at least one, or the format 'arrow'",
            field="samples",
        )
    before = None if mode == "error" else _read(store)
    kept: list[object] = []
    names: list[str] = []
    if mode == "append" and before is not None:
        names = [str(name) for name in decode_index(before[0], place=_place(store)).raw_names]
        kept = list(shard_objects(before[0].decode()))
    _refuse_same_names([*names, *(shard.raw.basename for shard in shards)])
    entries = [*kept, *(shard.as_json() for shard in shards)]
    content = json.dumps({"shards": entries, "version": 2}, sort_keys=True).encode()
    index = decode_index(content, place=_place(store))
    _write(store, content, before)
    return index


def _place(store: Store) -> str:
    return f"{store.url}/{MDS_INDEX_NAME}"


def _read(store: Store) -> tuple[bytes, Version] | None:
    try:
        return store.read_versioned(MDS_INDEX_NAME)
    except ObjectNotFoundError:
        return None


def _write(store: Store, content: bytes, before: tuple[bytes, Version] | None) -> None:
    replaced = None if before is None else before[1]
    try:
        write_unless_changed(store, MDS_INDEX_NAME, content, replaced=replaced)
    except CommitConflictError as error:
        if before is not None:
            raise
        raise _exists(store) from error


def _exists(store: Store) -> DatasetExistsError:
    return DatasetExistsError(
        f"{store.url} already contains a dataset; write elsewhere, or with mode='overwrite' or "
        "mode='append'",
        url=store.url,
    )


def _refuse_same_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadArgumentError(
            f"the shard {twice!r} occurs twice; give each writer its own folder",
            field="shards",
        )
