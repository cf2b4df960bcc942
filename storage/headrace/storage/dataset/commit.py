"""Commit shards as a dataset: manifest files first, ``headrace.json`` last, if unchanged.

Contract:

1. Success: the new version is the current one; older versions stay readable.
2. Conflict: another commit came first; it stands, ours leaves nothing behind, and the caller gets
   an error.
3. Failure or crash before the last write: the dataset is unchanged. Two unreferenced manifest files
   may remain; nothing reads them.
4. If the answer to the last write was lost, the file is read back: if it is ours, or lists our
   version because a later commit builds on it, the write has succeeded.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import (
    BadArgumentError,
    DatasetExistsError,
    ObjectNotFoundError,
)
from headrace.storage.dataset.manifest import Manifest
from headrace.storage.dataset.pointer import IndexPointer, Pointer
from headrace.storage.dataset.publish import publish
from headrace.storage.dataset.read_manifest import read_any_pointer, read_block_rows, read_manifest
from headrace.storage.shard.block_table import concatenated, encode_block_table
from headrace.storage.shard.column_facts import ColumnStats, joined_schema, served_schema
from headrace.storage.shard.even_blocks import block_samples_of
from headrace.storage.shard.fingerprint import fingerprint_of
from headrace.storage.shard.shard_writer import ShardEntry
from headrace.storage.shard.types import schema_texts
from headrace.storage.source.kinds import POINTER_NAME
from headrace.storage.source.other_kinds import refuse_other_kinds
from headrace.storage.store.store import Store, Version

Mode = Literal["error", "overwrite", "append"]


def check_mode(store: Store, mode: Mode) -> None:
    """Refuse early what `commit_dataset` would refuse at the end of a long job.

    Raises:
        BadArgumentError: There is no such mode.
        DatasetExistsError: The store holds a dataset and the mode is ``error``, or it holds a
            stored index or a dataset of another kind, which no mode replaces.
    """
    if mode not in get_args(Mode):
        raise BadArgumentError(
            f"mode is {mode!r}, expected one of {', '.join(get_args(Mode))}", field="mode"
        )
    if _read_current(store) is not None and mode == "error":
        raise DatasetExistsError(
            f"{store.url} already contains a dataset; write elsewhere, or with mode='overwrite' or "
            "mode='append'",
            url=store.url,
        )
    refuse_other_kinds(store, POINTER_NAME)


def commit_dataset(
    store: Store,
    schema: pa.Schema,
    shards: Sequence[ShardEntry],
    *,
    mode: Mode = "error",
    least_samples: int = 0,
) -> Manifest:
    """Publish shards that have been written as the dataset's new version.

    Args:
        store: The store of the shards.
        schema: The schema that the shards were written with.
        shards: The shards, in the order of sample ids. Shards without samples are left out; without
            any shard the dataset is empty.
        mode: What to do if there is a dataset already: ``error`` refuses, ``overwrite`` makes a
            version of only these shards, ``append`` one of the existing shards followed by these.
        least_samples: The minimum number of samples of a version.

    Returns:
        The manifest of the new current version.

    Raises:
        DatasetExistsError: See `check_mode`.
        CommitConflictError: Another commit won; nothing was changed.
        BadArgumentError: There are fewer samples, or the shards to append have another schema.
        UnsupportedColumnError: The schema cannot be stored.
    """
    check_mode(store, mode)
    schema_texts(schema)
    filled = [shard for shard in shards if len(shard.blocks)]
    current = _read_current(store)
    base = _read_base(store, current) if mode == "append" and current else None
    if not filled and base is not None:
        return base.manifest
    if sum(shard.sample_count for shard in filled) < least_samples and base is None:
        raise BadArgumentError(
            f"no samples to write to {store.url}; expected at least {least_samples}",
            field="samples",
        )
    manifest, blocks = _build(schema, filled, base=base, place=store.url)
    publish(
        store,
        manifest,
        blocks,
        before=current.pointer.versions if current else (),
        replaced=current.version if current else None,
    )
    return manifest


def build_manifest(schema: pa.Schema, shards: Sequence[ShardEntry]) -> tuple[Manifest, bytes]:
    """Return the manifest of shards and its block table; nothing is written.

    Args:
        schema: The schema that the shards were written with.
        shards: The shards, in the order of sample ids; at least one, each with samples.

    Raises:
        UnsupportedColumnError: The schema cannot be stored.
    """
    schema_texts(schema)
    return _build(schema, shards, base=None, place="")


@dataclass(frozen=True, slots=True)
class _Current:
    pointer: Pointer
    version: Version


@dataclass(frozen=True, slots=True)
class _Base:
    manifest: Manifest
    blocks: NDArray[np.void]


def _read_current(store: Store) -> _Current | None:
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError:
        return None
    if isinstance(pointer, IndexPointer):
        raise DatasetExistsError(
            f"{store.url} contains a stored index; write elsewhere",
            url=store.url,
        )
    return _Current(pointer, version)


def _read_base(store: Store, current: _Current) -> _Base:
    manifest = read_manifest(store, current.pointer.current)
    return _Base(manifest, read_block_rows(store, current.pointer.current, manifest))


def _build(
    schema: pa.Schema, shards: Sequence[ShardEntry], *, base: _Base | None, place: str
) -> tuple[Manifest, bytes]:
    stored = schema if base is None else _same_schema(schema, base.manifest.stored_schema, place)
    stats = _merged_stats(shards) or (ColumnStats(),) * len(stored)
    # An empty dataset says nothing about nulls and lengths.
    before = base.manifest.schema if base and base.manifest.sample_count else None
    served = served_schema(stored, stats, before=before)
    old = base.manifest if base else None
    counts = _joined(old.sample_counts if old else None, [s.sample_count for s in shards])
    raw = _joined(old.raw_bytes if old else None, [s.raw_bytes for s in shards])
    stored_bytes = _joined(old.stored_bytes if old else None, [s.stored_bytes for s in shards])
    block_counts = _joined(old.block_counts if old else None, [len(s.blocks) for s in shards])
    old_blocks = [base.blocks] if base else []
    blocks = concatenated([*old_blocks, *(shard.blocks for shard in shards)])
    content, pages = encode_block_table(blocks)
    block_samples = block_samples_of(blocks["sample_count"], block_counts)
    fingerprint = fingerprint_of(
        served=served,
        stored=stored,
        sample_counts=counts,
        raw_bytes=raw,
        block_counts=block_counts,
        block_samples=block_samples,
        page_digests=[bytes.fromhex(page.digest) for page in pages],
    )
    names = [*(old.names.to_pylist() if old else []), *(shard.name for shard in shards)]
    manifest = Manifest(
        fingerprint=fingerprint,
        schema=served,
        stored_schema=stored,
        names=pa.array(names, pa.string()),
        sample_counts=counts,
        raw_bytes=raw,
        stored_bytes=stored_bytes,
        block_counts=block_counts,
        block_samples=block_samples,
        pages=pages,
    )
    return manifest, content


def _same_schema(schema: pa.Schema, before: pa.Schema, place: str) -> pa.Schema:
    joined = joined_schema(before, schema, place=place)
    if joined is None:
        raise BadArgumentError(
            f"the samples to append have columns {_columns_text(schema)}, but the dataset {place} "
            f"has {_columns_text(before)}; select and cast them to match, or write a new dataset",
            field="schema",
        )
    return joined


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{name}: {text}" for name, text, _ in schema_texts(schema))


def _merged_stats(shards: Sequence[ShardEntry]) -> tuple[ColumnStats, ...]:
    return tuple(
        functools.reduce(ColumnStats.merged, column)
        for column in zip(*(shard.columns for shard in shards), strict=True)
    )


def _joined(before: NDArray[np.int64] | None, new: list[int]) -> NDArray[np.int64]:
    added = np.array(new, np.int64)
    return added if before is None else np.concatenate([before, added])
