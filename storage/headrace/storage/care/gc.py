"""Remove old versions, and files that no version names.

Contract of `plan_gc` and `collect_garbage`:

1. Success: first ``headrace.json`` lists only the kept versions; then files that no kept version
   names are removed.
2. Conflict: another commit came between plan and collection; nothing but notes of dead writers was
   removed, and the caller gets an error.
3. Failure or crash: at every step all versions that ``headrace.json`` lists are complete. The next
   run finds what was not removed.
4. Files that no version names are removed only above an age, for those of programs that leave no
   notes. Versions are removed only some time after they were replaced, because runs may still read
   them.
5. What writers at work may still commit stays at any age (`headrace.storage.dataset.writer_notes`).
6. Shards of any age stay while a young note names them: a compaction has taken them, and may commit
   them at any time. `headrace.storage.care.entry_notes` says how the two agree.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
)
from headrace.storage.care.entry_notes import NOTE_PREFIX, noted_shards
from headrace.storage.dataset.pointer import (
    MANIFEST_FOLDER,
    IndexPointer,
    Pointer,
    VersionEntry,
)
from headrace.storage.dataset.publish import write_pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_manifest
from headrace.storage.dataset.writer_notes import LIFE_S, LiveWrites, dead_notes, is_note
from headrace.storage.packing.pointer import PACKING_FOLDER
from headrace.storage.shard.shard_writer import SHARD_FOLDER
from headrace.storage.source.kinds import POINTER_NAME, refuse_absent
from headrace.storage.store.store import MARKER_FOLDER, ObjectEntry, PendingUpload, Store, Version

DEFAULT_KEEP = 1
"""How many versions stay, however old they are."""

DEFAULT_OLDER_THAN_S = 24 * 3600.0
"""Longer than most conversions and most epochs; callers with longer ones pass more."""

_FOLDERS = (f"{SHARD_FOLDER}/", f"{MANIFEST_FOLDER}/", f"{PACKING_FOLDER}/")
# Files of others stay: beside a stored index, its source may have folders of the same names.
_OURS = re.compile(
    rf"{SHARD_FOLDER}/.+\.arrow|{PACKING_FOLDER}/[0-9a-f]{{32}}/.+|{MARKER_FOLDER}/[0-9a-f]{{32}}"
    rf"|{MANIFEST_FOLDER}/[0-9a-f]{{32}}-[0-9a-f]{{8}}\.(index|(shards|blocks)\.arrow)"
    rf"|{NOTE_PREFIX}.+|{MANIFEST_FOLDER}/writing-.+|{re.escape(POINTER_NAME)}"
)
_SMALL = (f"{MANIFEST_FOLDER}/", POINTER_NAME)
_MDS_INDEX = "index.json"
_MDS_FOLDER = re.compile(r"\d{5}-[0-9a-f]{12,}/.*")  # partition, job and attempt
_THREADS = 16  # a store takes tens of milliseconds for a removal of any size


@dataclass(frozen=True, slots=True)
class GarbagePlan:
    """The plan of a collection: what it would remove.

    Attributes:
        kept: The versions that stay, the current one last; empty for a stored index.
        dropped: The versions to remove.
        files: The files to remove: those of dropped versions, and those that no version names.
        unfinished: Unfinished uploads and hidden files of writers that are gone.
        young_count: How many files that no version names are too young to remove, or belong to
            writers at work.
        markers: Markers of commits that died, in stores without conditional writes.
        version: The version of the ``headrace.json`` that the plan was made for.
        pointer: The file that takes the place of ``headrace.json``; ``index.json`` for MDS.
    """

    kept: tuple[VersionEntry, ...]
    dropped: tuple[VersionEntry, ...]
    files: tuple[ObjectEntry, ...]
    unfinished: tuple[PendingUpload, ...]
    young_count: int
    markers: tuple[ObjectEntry, ...]
    version: Version
    pointer: str = POINTER_NAME

    @property
    def stored_bytes(self) -> int:
        """Bytes that removing the files would free."""
        files = sum(entry.stored_bytes for entry in self.files)
        return files + sum(entry.stored_bytes for entry in self.unfinished)


def plan_gc(
    store: Store,
    *,
    keep: int = DEFAULT_KEEP,
    older_than_s: float = DEFAULT_OLDER_THAN_S,
    now_s: float,
) -> GarbagePlan:
    """Find out what can be removed, without removing it.

    Args:
        store: The store of the dataset.
        keep: How many of the newest versions stay, >= 1.
        older_than_s: The age in seconds from which a file that no version names is removed, unless
            it belongs to a writer at work, and the time since its replacement from which a version
            is.
        now_s: The current time, in seconds since 1970.

    Raises:
        NotADatasetError: There is neither ``headrace.json`` nor an ``index.json`` of MDS, so it is
            not known what is needed.
        ManifestCorruptError: The manifest of a version that stays is damaged; repair it first.
        ConfigurationError: The store does not say when files were written.
    """
    if keep < 1 or older_than_s < 0:
        raise BadArgumentError(
            f"keep is {keep} and older_than_s {older_than_s}, expected >= 1 and >= 0", field="keep"
        )
    cutoff_s = now_s - older_than_s
    try:
        pointer, version = read_any_pointer(store)
    except ObjectNotFoundError as error:
        return _plan_mds(store, cutoff_s, now_s=now_s, missing=error)
    listed = pointer.versions if isinstance(pointer, Pointer) else ()
    kept, dropped = split_versions(listed, keep=keep, cutoff_s=cutoff_s)
    named = {pointer.index.name} if isinstance(pointer, IndexPointer) else _named(store, kept)
    stay = _packings_of(pointer, kept)
    entries = [entry for folder in _FOLDERS for entry in _listed(store, folder)]
    unnamed = [e for e in entries if e.name not in named and not e.name.startswith(stay)]
    dead, covered = _writers(entries, now_s=now_s)
    old = _not_taken(store, unnamed, older(_of_nobody(unnamed, covered), cutoff_s))
    return GarbagePlan(
        kept=kept,
        dropped=dropped,
        files=(*dead, *old),
        unfinished=_unfinished(store, _OURS, covered, cutoff_s, now_s=now_s),
        young_count=len(unnamed) - len(dead) - len(old),
        # A commit takes seconds, and is not less alive because the caller is in a hurry.
        markers=older(_listed(store, f"{MARKER_FOLDER}/"), min(cutoff_s, now_s - LIFE_S)),
        version=version,
    )


def split_versions(
    versions: Sequence[VersionEntry], *, keep: int, cutoff_s: float
) -> tuple[tuple[VersionEntry, ...], tuple[VersionEntry, ...]]:
    """Return the versions that stay and those to remove, both in order.

    A version is removed if there are ``keep`` newer ones and its successor was committed at or
    before ``cutoff_s``. A time that cannot be read counts as recent.
    """
    goes = [
        index < len(versions) - keep and _created_s(versions[index + 1]) <= cutoff_s
        for index in range(len(versions))
    ]
    kept = tuple(version for version, gone in zip(versions, goes, strict=True) if not gone)
    return kept, tuple(version for version, gone in zip(versions, goes, strict=True) if gone)


def older(entries: Iterable[ObjectEntry], cutoff_s: float) -> tuple[ObjectEntry, ...]:
    """Return the entries last written at or before ``cutoff_s``, sorted by name."""
    found = (entry for entry in entries if entry.written_s <= cutoff_s)
    return tuple(sorted(found, key=lambda entry: entry.name))


def collect_garbage(
    store: Store, plan: GarbagePlan, *, progress: Callable[[int], None] | None = None
) -> None:
    """Carry out a plan.

    Args:
        store: The store that the plan was made from.
        plan: The plan, as recent as possible.
        progress: Called after each removal with the number of removals so far.

    Raises:
        CommitConflictError: ``headrace.json`` has changed since; nothing but notes of dead writers
            was removed.
    """
    for marker in plan.markers:  # otherwise they would block this commit too
        store.delete(marker.name)
    done = itertools.count(1)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-gc")

    def remove(removals: Iterable[Callable[[], None]]) -> None:
        for _ in pool.map(lambda removal: removal(), removals):
            if progress is not None:
                progress(next(done))

    try:
        # Dead writers' notes, the others, the dataset: `headrace.storage.dataset.writer_notes`.
        remove(_removal(store, entry) for entry in plan.files if is_note(entry.name))
        covered = LiveWrites(store.list(f"{MANIFEST_FOLDER}/"))
        _check_or_drop(store, plan)
        files = [e for e in plan.files if not is_note(e.name) and e.name not in covered]
        # Old notes go before the remaining ones are read: `headrace.storage.care.entry_notes`.
        remove(_removal(store, entry) for entry in files if _is_note(entry))
        rest = [entry for entry in files if not _is_note(entry)]
        remove(_removal(store, entry) for entry in _spared(store, rest))
        remove(_discarding(store, one) for one in plan.unfinished if one.name not in covered)
    finally:
        pool.shutdown(cancel_futures=True)


def _writers(
    entries: Iterable[ObjectEntry], *, now_s: float
) -> tuple[tuple[ObjectEntry, ...], LiveWrites]:
    """Return the notes of dead writers, and what the living ones may commit."""
    notes = [entry for entry in entries if is_note(entry.name)]
    dead = {entry.name: entry for entry in dead_notes(notes, now_s=now_s)}
    return tuple(dead.values()), LiveWrites(one.name for one in notes if one.name not in dead)


def _of_nobody(unnamed: Iterable[ObjectEntry], covered: LiveWrites) -> Iterator[ObjectEntry]:
    """Yield the files that are no notes of writers, and that none may commit."""
    return (e for e in unnamed if not is_note(e.name) and e.name not in covered)


def _unfinished(
    store: Store, ours: re.Pattern[str], covered: LiveWrites, cutoff_s: float, *, now_s: float
) -> tuple[PendingUpload, ...]:
    """Return old uploads of ours that no writer goes on with, by name."""
    # All but shards is small and soon written, and a note covers nothing before it is there.
    small_cutoff_s = min(cutoff_s, now_s - LIFE_S)
    found = (
        one
        for one in store.list_unfinished()
        if ours.fullmatch(one.name)
        and one.name not in covered
        and one.modified_s <= (small_cutoff_s if one.name.startswith(_SMALL) else cutoff_s)
    )
    return tuple(sorted(found, key=lambda one: one.name))


def _not_taken(
    store: Store, unnamed: Iterable[ObjectEntry], old: tuple[ObjectEntry, ...]
) -> tuple[ObjectEntry, ...]:
    """Return the old files without the shards that young notes name."""
    gone = {entry.name for entry in old}
    notes = [entry.name for entry in unnamed if _is_note(entry) and entry.name not in gone]
    taken = noted_shards(store, notes)
    return tuple(entry for entry in old if entry.name not in taken)


def _spared(store: Store, files: Sequence[ObjectEntry]) -> list[ObjectEntry]:
    """Return the files without the shards of notes that exist now."""
    if not any(entry.name.startswith(f"{SHARD_FOLDER}/") for entry in files):
        return list(files)
    names = store.list(f"{MANIFEST_FOLDER}/")
    taken = noted_shards(store, [name for name in names if name.startswith(NOTE_PREFIX)])
    return [entry for entry in files if entry.name not in taken]


def _is_note(entry: ObjectEntry) -> bool:
    return entry.name.startswith(NOTE_PREFIX)


def _check_or_drop(store: Store, plan: GarbagePlan) -> None:
    if plan.dropped:
        write_pointer(store, Pointer(plan.kept), replaced=plan.version)
        return
    if store.read_versioned(plan.pointer)[1] != plan.version:
        raise CommitConflictError(
            f"another writer changed {plan.pointer} in {store.url} in the meantime; nothing was "
            "removed, try again",
            url=store.url,
        )


def _plan_mds(
    store: Store, cutoff_s: float, *, now_s: float, missing: ObjectNotFoundError
) -> GarbagePlan:
    """Find what failed conversions left in a dataset in MosaicML's format.

    Only files in folders that are named like those of the converter's tasks are considered, because
    anything else may belong to somebody else.
    """
    try:
        content, version = store.read_versioned(_MDS_INDEX)
    except ObjectNotFoundError:
        refuse_absent(store.url)
        raise NotADatasetError(
            f"{store.url} has no {POINTER_NAME}, so it is unknown which files are needed; remove "
            "the whole folder if it is not needed, or rebuild the manifest with `headrace verify "
            "--repair-manifest`",
            url=store.url,
        ) from missing
    named = _named_by_index(content, place=f"{store.url}/{_MDS_INDEX}")
    entries = list(store.list_entries())
    unnamed = [e for e in entries if _MDS_FOLDER.fullmatch(e.name) and e.name not in named]
    dead, covered = _writers(entries, now_s=now_s)
    old = older(_of_nobody(unnamed, covered), cutoff_s)
    return GarbagePlan(
        kept=(),
        dropped=(),
        files=(*dead, *old),
        unfinished=_unfinished(store, _MDS_FOLDER, covered, cutoff_s, now_s=now_s),
        young_count=len(unnamed) - len(old),
        markers=(),
        version=version,
        pointer=_MDS_INDEX,
    )


def _named_by_index(content: bytes, *, place: str) -> set[str]:
    try:
        shards = json.loads(content)["shards"]
        parts = [shard.get(kind) for shard in shards for kind in ("raw_data", "zip_data")]
        return {part["basename"] for part in parts if part}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ManifestCorruptError(
            f"{place} is not an index of MDS ({error!r}); nothing was removed, restore it first",
            url=place,
        ) from error


def _named(store: Store, versions: Collection[VersionEntry]) -> set[str]:
    """Return the names of all files that versions need."""
    named = set()
    for version in versions:
        named |= {version.shards.name, version.blocks.name}
        shards = read_manifest(store, version).names.to_pylist()
        named |= {f"{SHARD_FOLDER}/{name}" for name in shards}
    return named


def _listed(store: Store, folder: str) -> Iterator[ObjectEntry]:
    """Yield the files of a folder that have names of ours."""
    return (entry for entry in store.list_entries(folder) if _OURS.fullmatch(entry.name))


def _packings_of(pointer: Pointer | IndexPointer, kept: Sequence[VersionEntry]) -> tuple[str, ...]:
    """Return the folders of the tables for packing of versions that stay."""
    versions = [pointer] if isinstance(pointer, IndexPointer) else kept
    return tuple(f"{PACKING_FOLDER}/{version.fingerprint}/" for version in versions)


def _created_s(version: VersionEntry) -> float:
    try:
        created = datetime.fromisoformat(version.created)
    except ValueError:
        return float("inf")
    return (created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp()


def _removal(store: Store, entry: ObjectEntry) -> Callable[[], None]:
    return lambda: store.delete(entry.name)


def _discarding(store: Store, unfinished: PendingUpload) -> Callable[[], None]:
    return lambda: store.discard(unfinished)
