"""Commit the shards of a job's tasks as datasets, one per split.

Contract of `check_splits` and `commit_splits`:

1. Errors are found before the first commit if possible: a split without samples, one whose dataset
   already exists, and shards that have disappeared.
2. Each split's commit is all or nothing. If one fails after others were committed, those stay, and
   the error says which.
3. A commit whose answer was lost, or that was interrupted, keeps its shards: it may have happened.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

import pyarrow as pa

from headrace.converter.tasks.sinks import Entry, Format, stored_name
from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    HeadraceError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.storage import (
    SHARD_FOLDER,
    Manifest,
    Mode,
    ShardEntry,
    Store,
    check_mode,
    commit_dataset,
)
from headrace.storage.mds import Index, MdsShardEntry, check_mds_mode, commit_mds
from headrace.storage.open.packed import store_converted_lengths
from headrace.storage.store.retry import hearing_failures

_log = logging.getLogger(__name__)

Written: TypeAlias = Manifest | Index


@dataclass(slots=True)
class Commits:
    """The state of a job's commits.

    Attributes:
        written: The committed datasets by split.
        maybe: Splits whose commit may have happened.
    """

    written: dict[str, Written] = field(default_factory=dict)
    maybe: set[str] = field(default_factory=set)


def check_target(store: Store, mode: Mode, file_format: Format) -> None:
    """Refuse arguments that a commit would refuse at the end of a long job.

    Raises:
        BadArgumentError: There is no such mode.
        DatasetExistsError: A dataset exists and the mode is ``error``, or a dataset of another
            kind exists, which no mode replaces.
    """
    check = check_mds_mode if file_format == "mds" else check_mode
    check(store, mode)


def try_committing(store: Store, job: str) -> None:
    """Write a small object as a commit does, and remove it, to find out before a long job.

    Raises:
        StoreRefusedError: The store does not let this process write, or has no conditional writes.
        StoreUnavailableError: The store cannot be reached.
    """
    name = f"headrace-probe-{job}"
    with contextlib.suppress(CommitConflictError):  # stores without tags may meet another commit
        store.write_if_absent(name, b"")
    with contextlib.suppress(HeadraceError):  # permission to write alone is enough
        store.delete(name)


def check_splits(
    stores: Mapping[str, Store],
    shards: Mapping[str, Sequence[Entry]],
    *,
    mode: Mode,
    file_format: Format,
) -> None:
    """Find what would make a commit fail; the arguments are those of `commit_splits`.

    Raises:
        ObjectNotFoundError: Shards have disappeared.
        HeadraceError: A split is empty; or see `check_target`.
    """
    _refuse_empty(stores, shards)
    for split, store in stores.items():
        check_target(store, mode, file_format)
        _refuse_lost(store, shards[split])


def commit_splits(
    commits: Commits,
    stores: Mapping[str, Store],
    shards: Mapping[str, Sequence[Entry]],
    *,
    schema: pa.Schema,
    mode: Mode,
    file_format: Format,
    least_samples: int = 0,
    lengths: str | None = None,
) -> None:
    """Commit one dataset after another.

    Args:
        commits: Finished commits are entered here, even if this raises.
        stores: The stores of the datasets, by split, in the order of the commits.
        shards: The shards of each split, in the order that sample ids follow.
        schema: The schema of the shards.
        mode: What to do if a dataset exists.
        file_format: The format of the shards.
        least_samples: The minimum number of samples of a dataset.
        lengths: The column whose lengths are in the shards' entries, or None.

    Raises:
        HeadraceError: See `commit_dataset` and `commit_mds`.
    """
    for split, store in stores.items():
        lost: list[StoreUnavailableError] = []
        try:
            with hearing_failures(lost.append):
                commits.written[split] = (
                    commit_mds(store, cast("Sequence[MdsShardEntry]", shards[split]), mode=mode)
                    if file_format == "mds"
                    else commit_dataset(
                        store,
                        schema,
                        cast("Sequence[ShardEntry]", shards[split]),
                        mode=mode,
                        least_samples=least_samples,
                    )
                )
        except HeadraceError as error:
            # Once an answer was lost, a refusal says nothing about the attempt before.
            unknown = (StoreUnavailableError, StoreRefusedError) if lost else StoreUnavailableError
            if isinstance(error, unknown):
                commits.maybe.add(split)
            raise _with_others(error, commits) from error
        except BaseException:  # such as an interrupt, which may have come after the last write
            commits.maybe.add(split)
            raise
        if lengths is not None:
            manifest = cast("Manifest", commits.written[split])
            _store_lengths(store, manifest, cast("Sequence[ShardEntry]", shards[split]), lengths)


def _store_lengths(
    store: Store, manifest: Manifest, shards: Sequence[ShardEntry], column: str
) -> None:
    """Store lengths beside a committed dataset, which is valid without them too."""
    try:
        why = ""
        if not store_converted_lengths(store, manifest, shards, column):
            why = f"the lengths of {column!r} in earlier samples are not stored"
    except HeadraceError as error:
        why = error.message
    if why:
        _log.warning(
            "%s: the samples are committed, without lengths: %s; `headrace index URL --pack-length "
            "L` reads them",
            store.url,
            why,
        )


def _refuse_empty(stores: Mapping[str, Store], shards: Mapping[str, Sequence[Entry]]) -> None:
    empty = [split for split in stores if not shards[split]]
    if empty and (len(stores) > 1 or empty[0]):
        counts = {
            split: sum(entry.sample_count for entry in entries) for split, entries in shards.items()
        }
        raise BadArgumentError(
            f"no samples for the split {', '.join(map(repr, empty))}, of all splits {counts}; "
            "nothing was written: give it a larger fraction, or leave it out",
            field="splits",
        )


def _refuse_lost(store: Store, shards: Sequence[Entry]) -> None:
    """Refuse to commit shards that have disappeared, for example from an emptied bucket.

    Stores create folders, and some create buckets, on writes, so no write reported it.
    """
    names = {stored_name(entry) for entry in shards}
    mine = isinstance(shards[0], ShardEntry) if shards else True
    lost = names - set(store.list(f"{SHARD_FOLDER}/" if mine else ""))
    if lost:
        raise ObjectNotFoundError(
            f"{len(lost)} of {len(names)} shards that tasks wrote to {store.url} have disappeared, "
            f"{min(lost)} among them; nothing was committed: find out what removes them, and "
            "convert again",
            url=store.url,
            name=min(lost),
        )


def _with_others(error: HeadraceError, commits: Commits) -> HeadraceError:
    if not commits.written:
        return error
    return type(error)(
        f"{error.message} (these splits were committed before and stay: "
        f"{', '.join(commits.written)})",
        **error.metadata,
    )
