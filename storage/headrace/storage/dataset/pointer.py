"""The codec of ``headrace.json``, the file that makes a dataset exist.

There are two kinds: version 1 lists the versions of a dataset of headrace's own shards; version 3
is the stored index of a source. Whoever writes the file decides what readers read, so it can name
places below its own URL only: where a source elsewhere is, the operator says.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from headrace.errors import ManifestCorruptError
from headrace.storage.dataset.newer_format import newer_format
from headrace.storage.shard.json_object import JsonObject

MANIFEST_FOLDER = "manifests"
POINTER_VERSION = 1
INDEX_POINTER_VERSION = 3
_NAMED_SOURCE_VERSION = 2  # contained the URL of the source
INDEXED_SOURCES = ("iceberg", "mds", "parquet", "unity", "webdataset")
MAX_POINTER_BYTES = 16 << 20
_MAX_TABLE_BYTES = 4 << 30


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
        "versions": [asdict(version) for version in pointer.versions],
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
    except (ValueError, RecursionError) as error:
        raise ManifestCorruptError(
            f"{place}: {error}; restore it or convert the data again", place=place
        ) from error


class OldIndexError(ManifestCorruptError):
    """A stored index contains the URL of its source; it can only be replaced."""


class _OldError(Exception):
    """The file is a stored index that contains the URL of its source."""


class _NewerError(Exception):
    """The file is of a newer version; the caller knows which file."""


def _text_of(content: dict[str, object]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _decode(content: bytes) -> Pointer | IndexPointer:
    if len(content) > MAX_POINTER_BYTES:
        raise ValueError(f"more than {MAX_POINTER_BYTES} bytes")
    top = JsonObject(json.loads(content.decode()), "the file")
    found = top.values.get("format")
    if found != "headrace":
        raise ValueError(f"format {str(found)[:100]!r} found, 'headrace' expected")
    match top.values.get("version"), top.values.get("source"):
        case (1, "arrow"):
            return _pointer(top)
        case (3, str(source)) if source in INDEXED_SOURCES:
            return _index_pointer(top, source)
        case (2, str(source)) if source in INDEXED_SOURCES:
            raise _OldError
        case (version, source):
            kind = _NewerError if _is_newer(version, source) else ValueError
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


def _pointer(top: JsonObject) -> Pointer:
    versions = top.sequence("versions")
    if not versions:
        raise ValueError("no list of versions")
    pointer = Pointer(tuple(_version(JsonObject(each, "a version")) for each in versions))
    if top.values.get("fingerprint") != pointer.current.fingerprint:
        raise ValueError("the fingerprint differs from that of the last version")
    return pointer


def _index_pointer(top: JsonObject, source: str) -> IndexPointer:
    return IndexPointer(
        source=source,
        path=_path(top),
        fingerprint=top.digits("fingerprint"),
        created=top.text("created"),
        sample_count=top.integer("sample_count", 1 << 62),
        index=_table(top, "index"),
        digest=top.nested("index").digits("digest"),
    )


def _version(version: JsonObject) -> VersionEntry:
    return VersionEntry(
        fingerprint=version.digits("fingerprint"),
        created=version.text("created"),
        sample_count=version.integer("sample_count", 1 << 62),
        shards=_table(version, "shards"),
        blocks=_table(version, "blocks"),
    )


def _table(version: JsonObject, key: str) -> TableFile:
    table = version.nested(key)
    return TableFile(table.name("name"), table.integer("stored_bytes", _MAX_TABLE_BYTES))


def _path(top: JsonObject) -> str | None:
    if top.values.get("path") is None:
        return None
    return top.name("path") if top.text("path") else ""


def _index_object(pointer: IndexPointer) -> dict[str, object]:
    facts = asdict(pointer)
    facts["index"]["digest"] = facts.pop("digest")
    return {"format": "headrace", "version": INDEX_POINTER_VERSION, **facts}
