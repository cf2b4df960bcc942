"""Keep the files of a folder that the logs beside them count as written, and leave the rest out.

Two programs write Parquet files into a folder before they know whether these count, and note
afterwards which do. Spark's streaming sink has a log for all of a folder in ``_spark_metadata``: a
file that a failed batch left is in no batch. Databricks' commit protocol has notes beside the
files: ``_started_T`` when transaction T began, and ``_committed_T`` with the names of files that it
added and removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from headrace.errors import ManifestCorruptError, ObjectNotFoundError
from headrace.storage.source.kinds import SINK_LOG_FOLDER, is_parquet_name
from headrace.storage.store.store import ObjectEntry, Store

_MAX_LOG_BYTES = 256 << 20  # arbitrary: a million files
_BATCH = re.compile(r"(\d{1,18})(\.compact)?")
_NOTE = re.compile(r"_(started|committed)_(\d+)")
_OF_TRANSACTION = re.compile(r".*-tid-(\d+)-.*")


def written_files(
    files: Store, entries: Sequence[ObjectEntry], chosen: Iterable[ObjectEntry]
) -> list[ObjectEntry]:
    """Return those of the chosen files that logs count as written.

    Args:
        files: The store of the folder.
        entries: All files in it, logs too.
        chosen: Its Parquet files.

    Returns:
        The files in the order of a sink's log, or sorted by name without one.

    Raises:
        ManifestCorruptError: A log cannot be read, or lacks a part.
        ObjectNotFoundError: A file that a log counts is missing.
        ShardCorruptError: It has another size than the log says.
    """
    if any(entry.name.startswith(f"{SINK_LOG_FOLDER}/") for entry in entries):
        return _of_sink(files, entries)
    return _committed(files, entries, sorted(chosen, key=lambda entry: entry.name))


def _of_sink(files: Store, entries: Sequence[ObjectEntry]) -> list[ObjectEntry]:
    place = f"{files.url}/{SINK_LOG_FOLDER}"
    by_name = {entry.name: entry for entry in entries if is_parquet_name(entry.name)}
    actions = [
        action
        for entry in _batches(entries, place)
        for action in _sink_actions(_content(files, entry), f"{files.url}/{entry.name}")
    ]
    gone = {action["path"] for action in actions if action["action"] == "delete"}
    kept = []
    for action in actions:
        if action["path"] in gone:
            continue
        name = _name_below(action["path"], by_name)
        if name is None:
            raise ObjectNotFoundError(
                f"file {action['path'][:500]} of the streaming sink {files.url} is missing; "
                f"restore it, or remove {SINK_LOG_FOLDER} if the folder was copied without some "
                "files on purpose",
                url=files.url,
                name=action["path"][:500],
            )
        found = by_name[name]
        if found.stored_bytes != action["size"]:
            raise ObjectEntry(name, action["size"], found.version).changed(found, url=files.url)
        kept.append(found)
    return kept


def _batches(entries: Iterable[ObjectEntry], place: str) -> list[ObjectEntry]:
    """Return the latest compacted log, if there is one, and the log of each batch after it."""
    single: dict[int, ObjectEntry] = {}
    compact: dict[int, ObjectEntry] = {}
    for entry in entries:
        folder, _, name = entry.name.rpartition("/")
        match = _BATCH.fullmatch(name) if folder == SINK_LOG_FOLDER else None
        if match is not None:
            (compact if match[2] else single)[int(match[1])] = entry
    first = max(compact, default=-1)
    last = max([first, *single])
    missing = [batch for batch in range(first + 1, last + 1) if batch not in single]
    if last < 0 or missing:
        found = "no log of a batch" if last < 0 else f"no log of batch {missing[0]}"
        raise _damage(place, found)
    kept = [compact[first]] if compact else []
    return kept + [single[batch] for batch in range(first + 1, last + 1)]


def _sink_actions(content: bytes, place: str) -> list[dict[str, Any]]:
    try:
        version, *lines = content.decode().split("\n")
        actions = [json.loads(line) for line in lines if line]
        if version != "v1" or not all(_is_action(action) for action in actions):
            raise ValueError(f"{version[:100]!r} and lines found, expected 'v1' and files")  # noqa: TRY301 - as the others
    except (ValueError, RecursionError) as error:
        raise _damage(place, str(error)[:300]) from error
    return actions


def _is_action(value: object) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("path"), str)
        and type(value.get("size")) is int
        and value.get("action") in {"add", "delete"}
    )


def _name_below(path: str, names: Mapping[str, ObjectEntry]) -> str | None:
    """Return the file of the folder that a log means, which has absolute paths of its writer.

    The longest name that the path ends with; so a folder that was moved is read as it was, and no
    path leads out of it.
    """
    parts = path.split("/")
    tails = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((tail for tail in tails if tail in names), None)


def _committed(
    files: Store, entries: Sequence[ObjectEntry], chosen: Sequence[ObjectEntry]
) -> list[ObjectEntry]:
    notes = [entry for entry in entries if _NOTE.fullmatch(entry.name.rpartition("/")[2])]
    if not notes:
        return list(chosen)
    left_out: set[str] = set()
    for folder, own in groupby(sorted(notes, key=_folder_of), _folder_of):
        names = [entry.name for entry in chosen if _folder_of(entry) == folder]
        left_out |= set(_uncommitted(files, list(own), names))
    return [entry for entry in chosen if entry.name not in left_out]


def _folder_of(entry: ObjectEntry) -> str:
    return entry.name.rpartition("/")[0]


def _uncommitted(files: Store, notes: Sequence[ObjectEntry], names: Sequence[str]) -> Iterator[str]:
    """Yield the files of a folder that no transaction counts."""
    started: set[str] = set()
    added: dict[str, set[str]] = {}
    removed: set[str] = set()
    for note in notes:
        match = _NOTE.fullmatch(note.name.rpartition("/")[2])
        assert match is not None
        if match[1] == "started":
            started.add(match[2])
            continue
        facts = _committed_facts(_content(files, note), f"{files.url}/{note.name}")
        added[match[2]] = facts[0]
        removed |= facts[1]
    present = {name.rpartition("/")[2] for name in names}
    for wanted in added.values():
        missing = sorted(wanted - present - removed)
        if missing:
            raise ObjectNotFoundError(
                f"file {missing[0][:500]}, which a transaction at {files.url} committed, is "
                "missing; restore it, or write the data again",
                url=files.url,
                name=missing[0][:500],
            )
    for name in names:
        file = name.rpartition("/")[2]
        match = _OF_TRANSACTION.fullmatch(file)
        transaction = "" if match is None else match[1]
        is_written = (
            file in added[transaction] if transaction in added else (transaction not in started)
        )
        if file in removed or not is_written:
            yield name


def _committed_facts(content: bytes, place: str) -> tuple[set[str], set[str]]:
    try:
        value = json.loads(content)
        added, removed = (value[key] for key in ("added", "removed"))
        if not all(isinstance(name, str) for name in (*added, *removed)):
            raise ValueError("names that are not text")  # noqa: TRY301 - as the others
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _damage(place, str(error)[:300]) from error
    return set(added), set(removed)


def _content(files: Store, entry: ObjectEntry) -> bytes:
    if entry.stored_bytes > _MAX_LOG_BYTES:
        raise _damage(
            f"{files.url}/{entry.name}", f"{entry.stored_bytes} bytes, which are too many"
        )
    return files.read_entry(entry, offset=0, length=entry.stored_bytes)


def _damage(place: str, found: str) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"the log {place} cannot be read: {found}; restore it, or write the data again",
        place=place,
    )
