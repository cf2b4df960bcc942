"""Detect the format of a file or folder from the names of files."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from headrace.storage import Store

FORMATS = (
    *("csv", "delta", "headrace", "huggingface", "iceberg", "images", "json"),
    *("mds", "orc", "parquet", "text", "unity", "webdataset"),
)

_NAMES = {"iceberg": "iceberg", "uc": "unity"}
_MARKER_FILES = {
    "headrace.json": "headrace",
    "index.json": "mds",
    "dataset_dict.json": "huggingface",
    "state.json": "huggingface",
}
_SUFFIXES = {
    ".arrow": "huggingface",
    ".bmp": "images",
    ".csv": "csv",
    ".gif": "images",
    ".jpeg": "images",
    ".jpg": "images",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".orc": "orc",
    ".parq": "parquet",
    ".parquet": "parquet",
    ".png": "images",
    ".pq": "parquet",
    ".tab": "csv",
    ".tar": "webdataset",
    ".text": "text",
    ".tif": "images",
    ".tiff": "images",
    ".tsv": "csv",
    ".txt": "text",
    ".webp": "images",
}
_STREAMING = re.compile(r"(.*/)?(shard\.\d{5}\.mds|chunk-\d+-\d+)(\.\w+)*")
_COMPRESSED = {".bz2", ".gz", ".zst"}
_AUXILIARY = {
    *("authors", "changelog", "changes", "citation", "classes", "contributing", "copying"),
    *("description", "labels", "licence", "license", "manifest", "notes", "notice", "readme"),
    *("requirements", "version"),
}
"""Stems of files that may accompany data of any format."""

_MAX_NAMES = 20_000  # arbitrary: 20 pages of an S3 listing, about 2 s
_CLEAR_SHARE = 2 / 3  # arbitrary: twice as many as of all other kinds together


def detect_format(source: str) -> str:
    """Return the format of a file or folder.

    Raises:
        BadArgumentError: It does not exist, is empty, or its names do not indicate a format.
        StoreRefusedError: The store refuses.
        StoreUnavailableError: The store cannot be reached.
    """
    from headrace.storage import open_store  # noqa: PLC0415 - needs the [storage] extra
    from headrace.storage.source.other_kinds import has_object  # noqa: PLC0415 - as above

    if (named := _NAMES.get(source.partition("://")[0])) is not None:
        return named
    with contextlib.closing(open_store(source)) as store:
        local, is_local = Path(store.url), "://" not in store.url
    if is_local and not local.exists():
        raise _missing(source)
    of_file = _format_of(PurePosixPath(source.rstrip("/")).name)
    if of_file is not None and not (is_local and local.is_dir()):
        return of_file
    if is_local and local.is_file():
        raise _unknown(source)
    with contextlib.closing(open_store(source)) as store:
        marked = next(
            (kind for mark, kind in _MARKER_FILES.items() if has_object(store, mark)), None
        )
        if marked is None and next(store.list("_delta_log/"), None) is not None:
            marked = "delta"
        names = [] if marked else _first_names(store)
    if marked is not None:
        return marked
    if any(_STREAMING.fullmatch(name) for name in names):
        return "mds"  # or LitData's; without an index at the top, opening says what is missing
    found = _majority_format(source, names) or of_file
    if found is not None:
        return found
    if not names:
        raise _missing(source)
    raise _unknown(source)


def _first_names(store: Store) -> list[str]:
    """Return the first names that are not hidden, or only hidden ones if there are no others."""
    hidden: list[str] = []
    shown: list[str] = []
    for name in store.list():
        (hidden if _is_hidden(name) else shown).append(name)
        if len(shown) == _MAX_NAMES:
            break
        del hidden[_MAX_NAMES:]
    return sorted(shown or hidden)


def _majority_format(source: str, names: Sequence[str]) -> str | None:
    """Return the format of most files, ignoring hidden and auxiliary ones.

    Raises:
        BadArgumentError: No format has two thirds of the files with a known format.
    """
    data = [name for name in names if not _is_auxiliary(name)]
    counts = Counter(filter(None, map(_format_of, data or names)))
    if not counts:
        return None
    (most, count), total = counts.most_common(1)[0], counts.total()
    if count < _CLEAR_SHARE * total:
        found = ", ".join(f"{number:,} of {kind}" for kind, number in counts.most_common())
        raise BadArgumentError(
            f"the file names at {source} suggest several formats: {found}; pass --format, or move "
            "files of other formats elsewhere",
            field="format",
        )
    return most


def _is_auxiliary(name: str) -> bool:
    return _is_hidden(name) or PurePosixPath(name).name.split(".", 1)[0].lower() in _AUXILIARY


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _format_of(name: str) -> str | None:
    path = PurePosixPath(name.lower())
    if path.suffix in _COMPRESSED:
        path = path.with_suffix("")
    return _SUFFIXES.get(path.suffix)


def _unknown(source: str) -> BadArgumentError:
    return BadArgumentError(
        f"the format of {source} is not clear from file names; pass --format, one of "
        f"{', '.join(FORMATS)}",
        field="format",
    )


def _missing(source: str) -> BadArgumentError:
    return BadArgumentError(
        f"{source} does not exist or is empty; expected a file or folder", field="SRC"
    )
