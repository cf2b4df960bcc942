"""Refuse Delta logs that name places outside of their table, before ``deltalake`` follows them.

A log names files in three ways that may lead to any object that its reader's credentials reach:
files of a shallow clone, the sidecars of checkpoints, and deletion vectors by absolute path. The
first appear in the list of files; here the others are looked for. Links are refused too, as
everywhere in a local store.

Read are the latest checkpoint that is one file, and what comes later: ``deltalake`` starts there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ConfigurationError, ManifestCorruptError
from headrace.storage.parquet.footer import read_footer
from headrace.storage.source.kinds import DELTA_LOG_FOLDER
from headrace.storage.store.outer_store import outer_name
from headrace.storage.store.store import ObjectEntry, Store

_LOG = re.compile(rf"{DELTA_LOG_FOLDER}/(?P<version>\d{{20}})\.(?P<rest>.+)")
_WHOLE_CHECKPOINT = re.compile(r"checkpoint(\.[0-9a-f-]+)?\.(parquet|json)")
_SIDECARS = f"{DELTA_LOG_FOLDER}/_sidecars/"
_SIDECAR = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]*")
# Random letters and digits are a folder, before the 20 that encode a name (Delta's protocol).
_RELATIVE_VECTOR = re.compile(r"[0-9A-Za-z]*.{20}", re.DOTALL)
_MAX_FILE_BYTES = 2 << 30
_THREADS = 16

_Action = Mapping[str, Any]
_Read = TypeVar("_Read")


def refuse_other_places(
    files: Store, entries: Sequence[ObjectEntry], *, version: int | None
) -> None:
    """Refuse links, and checkpoints with sidecars outside of the log.

    Args:
        files: The store of the table.
        entries: All of its files.
        version: The version to be opened; `None` for the current one.

    Raises:
        ConfigurationError: A checkpoint names such a sidecar.
        StoreRefusedError: A file of the log is a link that leads out.
        ManifestCorruptError: A checkpoint is damaged.
    """
    if "://" not in files.url:
        for entry in entries:
            if entry.name.startswith(f"{DELTA_LOG_FOLDER}/") or "deletion_vector" in entry.name:
                files.entry(entry.name)  # raises for a link that leads out

    def check(entry: ObjectEntry) -> None:
        for action in _actions(files, entry, "sidecar"):
            if (found := action.get("sidecar")) and not _SIDECAR.fullmatch(str(found["path"])):
                raise _leads_out(files, entry, "a sidecar")

    _each(check, [entry for entry in _log(entries, version) if ".checkpoint." in entry.name])


def vectors_of(
    files: Store, entries: Sequence[ObjectEntry], *, version: int, prefixes: Sequence[str]
) -> dict[str, _Action]:
    """Return what the log says of deletion vectors, by the paths of data files, as it has them.

    Of a path that was added more than once, the last one counts; files that were removed since are
    among them.

    Args:
        files: The store of the table.
        entries: All of its files.
        version: The version that was opened.
        prefixes: Of the operator, below which deletion vectors may lie.

    Raises:
        ConfigurationError: The log names a deletion vector outside of the table.
        ManifestCorruptError: The log is damaged.
    """

    def added(entry: ObjectEntry) -> dict[str, _Action | None]:
        found: dict[str, _Action | None] = {}
        for action in _actions(files, entry, "sidecar", "add"):
            if (sidecar := action.get("sidecar")) is not None:
                found |= added(sidecars[f"{_SIDECARS}{sidecar['path']}"])
            if (add := action.get("add")) is not None:
                found[add["path"]] = add.get("deletionVector")
        if not all(_is_inside(vector, prefixes) for vector in found.values() if vector):
            raise _leads_out(files, entry, "a deletion vector")
        return found

    sidecars = {entry.name: entry for entry in entries if entry.name.startswith(_SIDECARS)}
    logs = [entry for entry in _log(entries, version) if _version_of(entry) <= version]
    # A checkpoint says what there is after the commit of its version.
    logs.sort(key=lambda entry: (_version_of(entry), ".checkpoint." in entry.name))
    last: dict[str, _Action | None] = {}
    for found in _each(added, logs):
        last |= found
    return {path: vector for path, vector in last.items() if vector is not None}


def _version_of(entry: ObjectEntry) -> int:
    return int(entry.name.removeprefix(f"{DELTA_LOG_FOLDER}/").partition(".")[0])


def _is_inside(vector: _Action, prefixes: Sequence[str]) -> bool:
    kind, text = vector["storageType"], vector["pathOrInlineDv"]
    if kind == "p":
        return outer_name(unquote(text), prefixes) is not None
    return kind == "i" or (kind == "u" and _RELATIVE_VECTOR.fullmatch(text) is not None)


def _log(entries: Iterable[ObjectEntry], version: int | None) -> list[ObjectEntry]:
    """Return the files of a log from which a version is read, and later ones."""
    logs = [(entry, found) for entry in entries if (found := _LOG.fullmatch(entry.name))]
    whole = [
        int(found["version"]) for _, found in logs if _WHOLE_CHECKPOINT.fullmatch(found["rest"])
    ]
    first = max((each for each in whole if version is None or each <= version), default=0)
    return [entry for entry, found in logs if int(found["version"]) >= first]


def _each(read: Callable[[ObjectEntry], _Read], entries: Sequence[ObjectEntry]) -> list[_Read]:
    with ThreadPoolExecutor(_THREADS, "headrace-delta") as pool:
        return list(pool.map(read, entries))


def _actions(files: Store, entry: ObjectEntry, *kinds: str) -> Iterator[_Action]:
    """Yield actions of one file of a log, at least those of some kinds."""
    try:
        if entry.name.endswith(".json"):
            yield from _json_actions(files.read(entry.name, length=_MAX_FILE_BYTES))
        elif entry.name.endswith(".parquet"):
            with read_footer(files, entry).file() as head:
                names = head.schema_arrow.names
            if there := [kind for kind in kinds if kind in names]:
                yield from _rows(files.read(entry.name, length=_MAX_FILE_BYTES), there)
    except (pa.ArrowException, ValueError, TypeError, KeyError, RecursionError, OSError) as error:
        raise ManifestCorruptError(
            f"{entry.name} in {files.url} is not a part of a Delta log ({type(error).__name__}); "
            "repair the table, or give a version whose log is complete",
            place=f"{files.url}/{entry.name}",
        ) from None  # the cause may quote what is there


def _json_actions(content: bytes) -> Iterator[_Action]:
    for line in content.splitlines():
        if line.strip():
            yield json.loads(line, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose keys are there once, so that all readers read the same."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _rows(content: bytes, kinds: Sequence[str]) -> Iterator[_Action]:
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        wanted = ("sidecar.path", "add.path", "add.deletionVector")
        own = [name for name in wanted if name.startswith(tuple(kinds))]
        for batch in file.iter_batches(columns=own):
            yield from batch.to_pylist()


def _leads_out(files: Store, entry: ObjectEntry, what: str) -> ConfigurationError:
    return ConfigurationError(
        f"{entry.name} in {files.url} refers to {what} outside of the table, as a shallow clone "
        "does; copy the table, or give its place in source.table_prefixes of the server's "
        "configuration, which is not possible for sidecars",
        url=files.url,
    )
