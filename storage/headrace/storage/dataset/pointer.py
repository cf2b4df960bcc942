"""The codec of ``headrace.json``, the file that makes a dataset exist.

There are two kinds: version 1 lists the versions of a dataset of headrace's own shards; version 3
is the stored index of a source. Whoever writes the file decides what readers read, so it can name
places below its own URL only: where a source elsewhere is, the operator says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ManifestCorruptError
from headrace.storage.dataset.newer_format import newer_format
from headrace.storage.store.names import name_problem

MANIFEST_FOLDER = "manifests"
POINTER_VERSION = 1
INDEX_POINTER_VERSION = 3
_NAMED_SOURCE_VERSION = 2  # contained the URL of the source
INDEXED_SOURCES = ("mds", "parquet", "webdataset")
MAX_POINTER_BYTES = 16 << 20
_MAX_TABLE_BYTES = 4 << 30
_FINGERPRINT = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of the manifest: its name in the store and its size."""

    name: str
    stored_bytes: int


@dataclass(frozen=True, slots=True)
class VersionEntry:
    """One version of the dataset.

    Attributes:
        fingerprint: 32 hexadecimal digits.
        created: Time of the commit, ISO 8601 in UTC; for people only.
        sample_count: Number of samples; for people only.
        shards: The shard table.
        blocks: The block table.
    """

    fingerprint: str
    created: str
    sample_count: int
    shards: TableFile
    blocks: TableFile


@dataclass(frozen=True, slots=True)
class Pointer:
    """The versions of a dataset that can be opened; the current one is last."""

    versions: tuple[VersionEntry, ...]

    @property
    def current(self) -> VersionEntry:
        """The version that is opened by default."""
        return self.versions[-1]


@dataclass(frozen=True, slots=True)
class IndexPointer:
    """The index of a source, which is stored here.

    Attributes:
        source: The layout of the source, one of `INDEXED_SOURCES`.
        path: The folder of the source below the URL of this file, empty for the same folder; `None`
            if it is elsewhere.
        fingerprint: Fingerprint of the source when it was indexed, 32 hexadecimal digits.
        created: Time of the indexing, ISO 8601 in UTC; for people only.
        sample_count: Number of samples; for people only.
        index: The file of the index.
        digest: BLAKE2b-128 digest of that file, 32 hexadecimal digits.
    """

    source: str
    path: str | None
    fingerprint: str
    created: str
    sample_count: int
    index: TableFile
    digest: str


def encode_pointer(pointer: Pointer | IndexPointer) -> bytes:
    """Return the text of ``headrace.json``."""
    if isinstance(pointer, IndexPointer):
        return _text_of(_index_object(pointer))
    content: dict[str, object] = {
        "format": "headrace",
        "version": POINTER_VERSION,
        "source": "arrow",
        "fingerprint": pointer.current.fingerprint,
        "versions": [_version_object(version) for version in pointer.versions],
    }
    return _text_of(content)


def decode_pointer(content: bytes, *, place: str) -> Pointer | IndexPointer:
    """Return the contents of ``headrace.json``.

    Args:
        content: The bytes of the file.
        place: The place of the file, for the error.

    Raises:
        ManifestCorruptError: It is damaged, malicious, or of an unknown version;
            `NewerFormatError` if that version is newer than this headrace, and `OldIndexError` for
            an index that contains the URL of its source.
    """
    try:
        return _decode(content)
    except _OldError:
        raise OldIndexError(
            f"{place} is a stored index of version {_NAMED_SOURCE_VERSION}, which contains the URL "
            "of its source; such URLs are not followed, because whoever writes a file must not "
            "choose what its readers read. Store it again: `headrace index SOURCE --to INDEX`",
            place=place,
        ) from None
    except _NewerError as error:
        raise newer_format(place, str(error)) from error
    except (_DamageError, ValueError, RecursionError) as error:
        raise ManifestCorruptError(
            f"{place}: {error}; restore it or convert the data again", place=place
        ) from error


class OldIndexError(ManifestCorruptError):
    """A stored index contains the URL of its source; it can only be replaced."""


class _OldError(Exception):
    """The file is a stored index that contains the URL of its source."""


class _DamageError(Exception):
    """A fault in the file; the caller knows which file."""


class _NewerError(Exception):
    """The file is of a newer version; the caller knows which file."""


def _text_of(content: dict[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _decode(content: bytes) -> Pointer | IndexPointer:
    if len(content) > MAX_POINTER_BYTES:
        raise _DamageError(f"more than {MAX_POINTER_BYTES} bytes")
    top = _mapping(json.loads(content.decode()), "the file")
    if top.get("format") != "headrace":
        raise _DamageError(f"format {str(top.get('format'))[:100]!r} found, 'headrace' expected")
    match top.get("version"), top.get("source"):
        case (1, "arrow"):
            return _pointer(top)
        case (3, str(source)) if source in INDEXED_SOURCES:
            return _index_pointer(top, source)
        case (2, str(source)) if source in INDEXED_SOURCES:
            raise _OldError
        case (version, source):
            kind = _NewerError if _is_newer(version, source) else _DamageError
            raise kind(
                f"version {str(version)[:100]} of source {str(source)[:100]!r} found, but this "
                f"headrace reads version {POINTER_VERSION} of 'arrow' and version "
                f"{INDEX_POINTER_VERSION} of {', '.join(INDEXED_SOURCES)}"
            )


def _is_newer(version: object, source: object) -> bool:
    """Return whether a newer headrace wrote this, and not something else."""
    if type(version) is not int:
        return False
    return version > INDEX_POINTER_VERSION or (version > 0 and isinstance(source, str))


def _pointer(top: Mapping[str, object]) -> Pointer:
    versions = top.get("versions")
    if not isinstance(versions, list) or not versions:
        raise _DamageError("no list of versions")
    pointer = Pointer(tuple(_version(version) for version in versions))
    if top.get("fingerprint") != pointer.current.fingerprint:
        raise _DamageError("the fingerprint differs from that of the last version")
    return pointer


def _index_pointer(top: Mapping[str, object], source: str) -> IndexPointer:
    index = _mapping(top.get("index"), "index")
    return IndexPointer(
        source=source,
        path=_path(top),
        fingerprint=_digits(top, "fingerprint"),
        created=_string(top, "created"),
        sample_count=_integer(top, "sample_count", 1 << 62),
        index=_table(top, "index"),
        digest=_digits(index, "digest"),
    )


def _version(value: object) -> VersionEntry:
    version = _mapping(value, "a version")
    return VersionEntry(
        fingerprint=_digits(version, "fingerprint"),
        created=_string(version, "created"),
        sample_count=_integer(version, "sample_count", 1 << 62),
        shards=_table(version, "shards"),
        blocks=_table(version, "blocks"),
    )


def _table(version: Mapping[str, object], key: str) -> TableFile:
    table = _mapping(version.get(key), key)
    name = _string(table, "name")
    problem = name_problem(name)
    if problem is not None:
        raise _DamageError(f"name {name[:200]!r} of {key}: {problem}")
    return TableFile(name=name, stored_bytes=_integer(table, "stored_bytes", _MAX_TABLE_BYTES))


def _path(top: Mapping[str, object]) -> str | None:
    if top.get("path") is None:
        return None
    path = _string(top, "path")
    problem = name_problem(path) if path else None
    if problem is not None:
        raise _DamageError(f"path {path[:200]!r}: {problem}")
    return path


def _digits(mapping: Mapping[str, object], key: str) -> str:
    value = _string(mapping, key)
    if not _FINGERPRINT.fullmatch(value):
        raise _DamageError(f"{key} {value[:100]!r} is not 32 hexadecimal digits")
    return value


def _mapping(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _DamageError(f"{what} is not a JSON object")
    return value


def _string(mapping: Mapping[str, object], key: str) -> str:
    value = mapping.get(key)
    if not isinstance(value, str):
        raise _DamageError(f"{key} is {str(value)[:100]}, expected a string")
    return value


def _integer(mapping: Mapping[str, object], key: str, high: int) -> int:
    value = mapping.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
        raise _DamageError(f"{key} is {str(value)[:100]}, expected an integer from 0 to {high}")
    return value


def _version_object(version: VersionEntry) -> dict[str, object]:
    return {
        "fingerprint": version.fingerprint,
        "created": version.created,
        "sample_count": version.sample_count,
        "shards": {"name": version.shards.name, "stored_bytes": version.shards.stored_bytes},
        "blocks": {"name": version.blocks.name, "stored_bytes": version.blocks.stored_bytes},
    }


def _index_object(pointer: IndexPointer) -> dict[str, object]:
    return {
        "format": "headrace",
        "version": INDEX_POINTER_VERSION,
        "source": pointer.source,
        "path": pointer.path,
        "fingerprint": pointer.fingerprint,
        "created": pointer.created,
        "sample_count": pointer.sample_count,
        "index": {
            "name": pointer.index.name,
            "stored_bytes": pointer.index.stored_bytes,
            "digest": pointer.digest,
        },
    }
