"""Detect the format of a file or folder from the names of files."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from headrace.errors import BadArgumentError, ObjectNotFoundError

if TYPE_CHECKING:
    from headrace.storage import Store

FORMATS = (
    *("csv", "delta", "headrace", "huggingface", "images", "json"),
    *("mds", "orc", "parquet", "text", "webdataset"),
)

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
        marked = next((kind for mark, kind in _MARKER_FILES.items() if _exists(store, mark)), None)
        names = [] if marked else sorted(islice(store.list(), _MAX_NAMES))
    if marked is not None:
        return marked
    if any(name.startswith("_delta_log/") for name in names):
        return "delta"
    found = _majority_format(source, names) or of_file
    if found is not None:
        return found
    if not names:
        raise _missing(source)
    raise _unknown(source)


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
    path = PurePosixPath(name)
    is_hidden = any(part.startswith((".", "__MACOSX")) for part in path.parts)
    return is_hidden or path.name.split(".", 1)[0].lower() in _AUXILIARY


def _exists(store: Store, name: str) -> bool:
    try:
        store.read(name, offset=0, length=1)
    except ObjectNotFoundError:
        return False
    return True


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
