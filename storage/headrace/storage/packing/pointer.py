"""Encode and decode ``packing.json``, which says what is stored for packing documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from headrace.errors import BadArgumentError, ManifestCorruptError
from headrace.storage.shard.json_object import JsonObject

PACKING_FOLDER = "packing"
PACKING_VERSION = 2
MAX_ROW_LENGTH = 1 << 22
MAX_ROW_OPTIONS = 64
_MAX_POINTER_BYTES = 1 << 20
_MAX_COUNT = (1 << 46) - 1
_TOKEN_LIMIT = 1 << 31
_DIGEST_BYTES = 16


def packing_name(fingerprint: str, cost: str = "") -> str:
    """Return the name of ``packing.json`` for a dataset's version; or of a column's costs."""
    name = f"cost-{digest_of(cost)}" if cost else "packing"
    return f"{PACKING_FOLDER}/{fingerprint}/{name}.json"


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
    facts = asdict(pointer)
    del facts["rows"]
    if not pointer.tokenizer:
        del facts["tokenizer"]
    content = {
        "format": "headrace-packing",
        "version": PACKING_VERSION,
        **facts,
        "rows": [
            {**asdict(table.options), "row_count": table.row_count, "counts": asdict(table.counts)}
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
        f"{place}: {found}; store it again with `headrace index --pack-length`, or `--cost`",
        place=place,
    )


def _decode(content: bytes, fingerprint: str) -> PackingPointer:
    folder = f"{PACKING_FOLDER}/{fingerprint}/"
    if len(content) > _MAX_POINTER_BYTES:
        raise ValueError(f"more than {_MAX_POINTER_BYTES} bytes")
    top = JsonObject(json.loads(content.decode()), "the file")
    stated = top.values
    if stated["format"] != "headrace-packing" or stated["version"] != PACKING_VERSION:
        raise ValueError(f"version {stated['version']!s:.50} found, {PACKING_VERSION} expected")
    facts = {key: value for key, value in stated.items() if key != "digest"}
    if stated["digest"] != digest_of(facts):
        raise ValueError(f"digest {stated['digest']!s:.50} found, {digest_of(facts)} expected")
    if stated["dataset"] != fingerprint:
        raise ValueError(f"dataset {stated['dataset']!s:.50} found, {fingerprint} expected")
    rows = tuple(_row_table(JsonObject(each, "rows"), folder) for each in top.sequence("rows"))
    lengths = [table.options.length for table in rows]
    if len(rows) > MAX_ROW_OPTIONS or len(set(lengths)) != len(lengths):
        raise ValueError(f"rows of lengths {lengths!s:.100} found, each expected once")
    alike = top.sequence("alike")
    tokenizer = top.digits("tokenizer") if stated.get("tokenizer", "") != "" else ""
    if tokenizer and alike:
        raise ValueError(f"a tokenizer found next to other columns {alike!s:.50}, none expected")
    if not all(isinstance(name, str) for name in alike):
        raise ValueError(f"alike is {alike!s:.50}, expected names of columns")
    return PackingPointer(
        dataset=fingerprint,
        column=top.text("column"),
        alike=tuple(map(str, alike)),
        sample_count=top.integer("sample_count", _MAX_COUNT),
        empty_count=top.integer("empty_count", _MAX_COUNT),
        lengths=_file(top.nested("lengths"), folder),
        groups=_file(top.nested("groups"), folder),
        rows=rows,
        tokenizer=tokenizer,
    )


def digest_of(facts: Mapping[str, object] | str) -> str:
    """Return the digest of a name, or of all that the file says beside it, as it stands there."""
    text = json.dumps(facts, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _row_table(found: JsonObject, folder: str) -> RowTable:
    bos, eos = (
        None if found.values[key] is None else found.integer(key, _TOKEN_LIMIT)
        for key in ("bos", "eos")
    )
    length, cut, fill = (found.integer(key, _TOKEN_LIMIT) for key in ("length", "cut", "fill"))
    options = RowOptions(length, cut, bos, eos, fill)
    return RowTable(
        options, found.integer("row_count", _MAX_COUNT), _file(found.nested("counts"), folder)
    )


def _file(found: JsonObject, folder: str) -> StoredFile:
    name = found.name("name")
    if not name.startswith(folder):
        raise ValueError(f"file {name[:100]!r} is not in {folder}")
    return StoredFile(name, found.integer("stored_bytes", _MAX_COUNT), found.digits("digest"))


def _check(field_name: str, value: int, *, low: int, high: int) -> None:
    if not low <= value < high:
        raise BadArgumentError(
            f"{field_name} is {value}, must be in [{low}, {high})", field=field_name
        )
