"""Encode and decode ``packing.json``, which says what is stored for packing documents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from headrace.errors import BadArgumentError, ManifestCorruptError
from headrace.storage.store.names import name_problem

PACKING_FOLDER = "packing"
PACKING_VERSION = 2
MAX_ROW_LENGTH = 1 << 22
MAX_ROW_OPTIONS = 64
_MAX_POINTER_BYTES = 1 << 20
_MAX_FILE_BYTES = 1 << 46
_TOKEN_LIMIT = 1 << 31
_DIGEST_BYTES = 16
_DIGEST = re.compile("[0-9a-f]{32}")


def packing_name(fingerprint: str) -> str:
    """Return the name of ``packing.json`` for a dataset's version."""
    return f"{PACKING_FOLDER}/{fingerprint}/packing.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file beside ``packing.json``.

    Attributes:
        name: Its name in the store.
        stored_bytes: Its size.
        digest: BLAKE2b-128 of its bytes, 32 hexadecimal digits; for the lengths, which are read in
            parts with hashes of their own, it only identifies them.
    """

    name: str
    stored_bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class RowOptions:
    """How documents become rows.

    Attributes:
        length: The number of elements of a row, in [1, `MAX_ROW_LENGTH`].
        cut: A document that fits into no row is cut if a row has room for this many elements; 0
            only cuts documents longer than a row.
        bos: The token that is put before each document, in [0, 2**31), or None.
        eos: The token that is put after it, or None.
        fill: The token that fills rows up, in [0, 2**31).

    Raises:
        BadArgumentError: One is out of range.
    """

    length: int
    cut: int = 0
    bos: int | None = None
    eos: int | None = None
    fill: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        _check("length", self.length, low=1, high=MAX_ROW_LENGTH + 1)
        _check("cut", self.cut, low=0, high=self.length + 1)
        for name, token in (("bos", self.bos), ("eos", self.eos), ("fill", self.fill)):
            _check(name, 0 if token is None else token, low=0, high=_TOKEN_LIMIT)

    @property
    def marks(self) -> int:
        """Return the number of tokens put around each document."""
        return (self.bos is not None) + (self.eos is not None)


@dataclass(frozen=True, slots=True)
class RowTable:
    """The row counts of all groups, for given options.

    Attributes:
        options: The options.
        row_count: The number of rows of all groups.
        counts: ``(groups,)`` little-endian uint32.
    """

    options: RowOptions
    row_count: int
    counts: StoredFile


@dataclass(frozen=True, slots=True)
class PackingPointer:
    """The contents of ``packing.json``.

    Attributes:
        dataset: The fingerprint of the version.
        column: The column whose lengths are stored.
        alike: Other columns, whose rows have the same lengths.
        sample_count: The number of documents.
        empty_count: The number of documents without elements.
        lengths: The file of the lengths of all documents, group after group.
        groups: The file of the table of groups.
        rows: The row counts, at most one for each length of rows.
        tokenizer: The digest of the tokenizer that tokenized the column of texts; empty for a
            column of lists.
    """

    dataset: str
    column: str
    alike: tuple[str, ...]
    sample_count: int
    empty_count: int
    lengths: StoredFile
    groups: StoredFile
    rows: tuple[RowTable, ...] = field(default=())
    tokenizer: str = ""

    @property
    def source(self) -> tuple[str, ...]:
        """Return the columns of the lengths, and the tokenizer if there is one."""
        return (self.tokenizer, self.column, *self.alike)


def encode_packing(pointer: PackingPointer) -> bytes:
    """Return the text of ``packing.json``."""
    content = {
        "format": "headrace-packing",
        "version": PACKING_VERSION,
        "dataset": pointer.dataset,
        "column": pointer.column,
        "alike": list(pointer.alike),
        **({"tokenizer": pointer.tokenizer} if pointer.tokenizer else {}),
        "sample_count": pointer.sample_count,
        "empty_count": pointer.empty_count,
        "lengths": _file_object(pointer.lengths),
        "groups": _file_object(pointer.groups),
        "rows": [
            {
                "length": table.options.length,
                "cut": table.options.cut,
                "bos": table.options.bos,
                "eos": table.options.eos,
                "fill": table.options.fill,
                "row_count": table.row_count,
                "counts": _file_object(table.counts),
            }
            for table in pointer.rows
        ],
    }
    sealed = {**content, "digest": digest_of(content)}
    return (json.dumps(sealed, indent=2) + "\n").encode()


def decode_packing(content: bytes, *, fingerprint: str, place: str) -> PackingPointer:
    """Return the contents of ``packing.json``.

    Args:
        content: The file.
        fingerprint: The fingerprint of the version that it is for.
        place: Where it is, for the error.

    Raises:
        ManifestCorruptError: It is damaged, hostile, of another version of the dataset, or of an
            unknown format.
    """
    try:
        pointer = _decode(content, fingerprint)
    except (ValueError, TypeError, KeyError, RecursionError, BadArgumentError) as error:
        raise packing_damage(place, f"{error!s:.300}") from error
    return pointer


def packing_damage(place: str, found: str) -> ManifestCorruptError:
    """Return the error for a damaged or missing file of those that packing needs."""
    return ManifestCorruptError(
        f"{place}: {found}; store it again with `headrace index --pack-length`", place=place
    )


def _decode(content: bytes, fingerprint: str) -> PackingPointer:
    folder = f"{PACKING_FOLDER}/{fingerprint}/"
    if len(content) > _MAX_POINTER_BYTES:
        raise ValueError(f"more than {_MAX_POINTER_BYTES} bytes")
    top = _mapping(json.loads(content.decode()))
    if top["format"] != "headrace-packing" or top["version"] != PACKING_VERSION:
        raise ValueError(f"version {top['version']!s:.50} found, {PACKING_VERSION} expected")
    facts = {key: value for key, value in top.items() if key != "digest"}
    if top["digest"] != digest_of(facts):
        raise ValueError(f"digest {top['digest']!s:.50} found, {digest_of(facts)} expected")
    if top["dataset"] != fingerprint:
        raise ValueError(f"dataset {top['dataset']!s:.50} found, {fingerprint} expected")
    rows = tuple(_row_table(_mapping(each), folder) for each in _list(top["rows"]))
    lengths = [table.options.length for table in rows]
    if len(rows) > MAX_ROW_OPTIONS or len(set(lengths)) != len(lengths):
        raise ValueError(f"rows of lengths {lengths!s:.100} found, each expected once")
    tokenizer = _text(top.get("tokenizer", ""))
    if tokenizer and (not _DIGEST.fullmatch(tokenizer) or top["alike"]):
        raise ValueError(
            f"tokenizer {tokenizer[:40]!r} found next to other columns {top['alike']!s:.50}, none "
            "expected"
        )
    return PackingPointer(
        dataset=fingerprint,
        column=_text(top["column"]),
        alike=tuple(_text(name) for name in _list(top["alike"])),
        sample_count=_count(top["sample_count"]),
        empty_count=_count(top["empty_count"]),
        lengths=_file(top["lengths"], folder),
        groups=_file(top["groups"], folder),
        rows=rows,
        tokenizer=tokenizer,
    )


def digest_of(facts: Mapping[str, object]) -> str:
    """Return the digest of all that the file says beside it, as it stands there."""
    text = json.dumps(facts, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _row_table(found: Mapping[str, object], folder: str) -> RowTable:
    bos, eos = (None if found[key] is None else _count(found[key]) for key in ("bos", "eos"))
    options = RowOptions(
        _count(found["length"]), _count(found["cut"]), bos, eos, _count(found["fill"])
    )
    return RowTable(options, _count(found["row_count"]), _file(found["counts"], folder))


def _file(value: object, folder: str) -> StoredFile:
    found = _mapping(value)
    name, digest = _text(found["name"]), _text(found["digest"])
    if name_problem(name) or not name.startswith(folder) or not _DIGEST.fullmatch(digest):
        raise ValueError(f"file {name[:100]!r} with digest {digest[:40]!r} is not a valid entry")
    return StoredFile(name, _count(found["stored_bytes"]), digest)


def _file_object(file: StoredFile) -> dict[str, object]:
    return {"name": file.name, "stored_bytes": file.stored_bytes, "digest": file.digest}


def _mapping(value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!s:.50} found, an object expected")
    return cast("Mapping[str, object]", value)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!s:.50} found, a list expected")
    return cast("list[object]", value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!s:.50} found, a text expected")
    return value


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < _MAX_FILE_BYTES:
        raise ValueError(f"{value!s:.50} found, a count expected")
    return value


def _check(field_name: str, value: int, *, low: int, high: int) -> None:
    if not low <= value < high:
        raise BadArgumentError(
            f"{field_name} is {value}, must be in [{low}, {high})", field=field_name
        )
