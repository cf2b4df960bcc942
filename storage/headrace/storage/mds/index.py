"""Parse ``index.json``: the shards of an MDS dataset as columns of numbers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, NotADatasetError
from headrace.storage.mds.hashes import HASHES, fastest
from headrace.storage.mds.json import shard_objects
from headrace.storage.mds.samples import MAX_SHARD_BYTES, header_bytes
from headrace.storage.mds.shard_schema import (
    ShardSchema,
    schema_of,
    schema_text,
    sequence_of,
    text_schema_of,
)
from headrace.storage.shard.fingerprint import FINGERPRINT_BYTES
from headrace.storage.store.names import name_problem

MAX_INDEX_BYTES = 1 << 30  # two million shards
MAX_SCHEMAS = 1000  # arbitrary; a dataset merged from many has a few
_PART_SHARDS = 4096  # arbitrary
_PREFIX = b"headrace mds v1\n"
_PLAIN_NAME = re.compile(r"(?:[\w=-]{1,100}/)?[\w=-]{1,100}(?:\.\w{1,20}){1,4}", re.ASCII)


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """The contents of ``index.json``.

    Attributes:
        fingerprint: 32 hexadecimal digits.
        schemas: The distinct schemas, in order of their first shards.
        schema_ordinals: ``(shards,) int32`` into ``schemas``.
        sample_counts: ``(shards,) int64``, each >= 0.
        raw_bytes: ``(shards,) int64``; uncompressed sizes of the files.
        stored_bytes: ``(shards,) int64``; sizes of the files in the store.
        raw_names: ``(shards,)`` strings; the names of uncompressed files.
        stored_names: ``(shards,)`` strings; the names of files in the store.
        raw_hashes: ``(shards,)`` strings; ``algorithm:digest`` or empty.
        stored_hashes: ``(shards,)`` strings; the same for files in the store.
    """

    fingerprint: str
    schemas: tuple[ShardSchema, ...]
    schema_ordinals: NDArray[np.int32]
    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]
    raw_names: pa.StringArray
    stored_names: pa.StringArray
    raw_hashes: pa.StringArray
    stored_hashes: pa.StringArray


def decode_index(content: bytes, *, place: str) -> Index:
    """Return the contents of an ``index.json``.

    Args:
        content: The file.
        place: Where it is, for the error.

    Raises:
        ManifestCorruptError: It is damaged, hostile, or of an unknown version.
        NotADatasetError: A shard has a format that is not supported.
    """
    if len(content) > MAX_INDEX_BYTES:
        raise ManifestCorruptError(
            f"{place} has more than {MAX_INDEX_BYTES} bytes; split the dataset", place=place
        )
    collected, text = _ColumnBuilder(place), ""
    try:
        text = content.decode()
        del content  # the caller may have no other reference, and this halves the memory
        for value in shard_objects(text):
            collected.add(value)
        index = collected.index()
        _check_distinct(index)
    except (ValueError, RecursionError) as error:
        if '"chunks"' in text and collected.count == 0:
            raise NotADatasetError(
                f"{place} is the index of a LitData dataset, which headrace does not read; read "
                "its samples with litdata, and write them with headrace.converter.write_shards or "
                "as Parquet files",
                place=place,
            ) from error
        raise ManifestCorruptError(
            f"{place}: {error}; restore it or convert the data again", place=place
        ) from error
    return index


class _File(NamedTuple):  # made 200,000 times, for which a frozen dataclass would take 0.2 s more
    """One file of a shard, according to the index.

    Attributes:
        name: Its name in the store.
        size: Its size in bytes.
        hash: ``algorithm:digest`` to check, or empty.
        hashes: All hashes, sorted and separated by commas.
    """

    name: str
    size: int
    hash: str
    hashes: str


@dataclass(slots=True)
class _ColumnBuilder:
    """Columns that grow shard by shard, with few Python objects."""

    place: str
    count: int = 0
    number_parts: list[NDArray[np.int64]] = field(default_factory=list)
    text_parts: list[list[pa.StringArray]] = field(default_factory=list)
    schemas: list[ShardSchema] = field(default_factory=list)
    ordinals: dict[object, int] = field(default_factory=dict)
    numbers: list[tuple[int, int, int, int]] = field(default_factory=list)
    texts: list[tuple[str, str, str, str]] = field(default_factory=list)
    digest: hashlib.blake2b = field(
        default_factory=lambda: hashlib.blake2b(_PREFIX, digest_size=FINGERPRINT_BYTES)
    )

    def add(self, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"shard {self.count} is not a JSON object")  # noqa: TRY004 - the file's fault, not a type's
        try:
            self._add(value)
        except (ValueError, KeyError, TypeError) as error:
            found = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"shard {self.count}: {found}") from error
        self.count += 1
        if len(self.numbers) == _PART_SHARDS:
            self._pack()

    def index(self) -> Index:
        self._pack()
        columns = np.concatenate(self.number_parts)
        names = [pa.concat_arrays(parts) for parts in zip(*self.text_parts, strict=True)]
        return Index(
            fingerprint=self.digest.hexdigest(),
            schemas=tuple(self.schemas),
            schema_ordinals=columns[:, 0].astype(np.int32),
            sample_counts=columns[:, 1].copy(),
            raw_bytes=columns[:, 2].copy(),
            stored_bytes=columns[:, 3].copy(),
            raw_names=names[0],
            stored_names=names[1],
            raw_hashes=names[2],
            stored_hashes=names[3],
        )

    def _add(self, value: Mapping[str, object]) -> None:
        if value["version"] != 2:  # noqa: PLR2004 - the version
            raise ValueError(f"version {str(value['version'])[:100]} found, expected 2")
        ordinal = self._ordinal(value) if value["format"] == "mds" else self._text_ordinal(value)
        sample_count = _integer(value, "samples")
        raw = _file(value["raw_data"], "raw_data")
        stored = raw
        if self.schemas[ordinal].compression is not None:
            stored = _file(value["zip_data"], "zip_data")
        _check_hashes(value, raw, *([] if stored is raw else [stored]))
        is_text = self.schemas[ordinal].text is not None
        if raw.size < (sample_count if is_text else header_bytes(sample_count)):
            raise ValueError(f"{raw.size} bytes are too few for {sample_count} samples")
        self.numbers.append((ordinal, sample_count, raw.size, stored.size))
        self.texts.append((raw.name, stored.name, raw.hash, stored.hash))
        row = f"{ordinal}\t{sample_count}\t{raw.size}\t{raw.name}\t{raw.hashes}\n"
        self.digest.update(row.encode())

    def _pack(self) -> None:
        self.number_parts.append(np.array(self.numbers, np.int64).reshape(len(self.numbers), 4))
        columns = zip(*self.texts, strict=True) if self.texts else [()] * 4
        self.text_parts.append([pa.array(column, pa.string()) for column in columns])
        self.numbers.clear()
        self.texts.clear()

    def _ordinal(self, value: Mapping[str, object]) -> int:
        names = sequence_of(value, "column_names")
        encodings = sequence_of(value, "column_encodings")
        sizes = sequence_of(value, "column_sizes")
        compression = value["compression"]
        key = (*names, *encodings, *sizes, len(names), compression)
        ordinal = self.ordinals.get(key)
        if ordinal is None:
            ordinal = self._add_schema(key, schema_of(names, encodings, sizes, compression))
        return ordinal

    def _text_ordinal(self, value: Mapping[str, object]) -> int:
        schema = text_schema_of(value)
        if schema is None:
            self._refuse_format(value)
        ordinal = self.ordinals.get(schema)
        return self._add_schema(schema, schema) if ordinal is None else ordinal

    def _add_schema(self, key: object, schema: ShardSchema) -> int:
        ordinal = self.ordinals[key] = len(self.schemas)
        if ordinal == MAX_SCHEMAS:
            raise ValueError(f"more than {MAX_SCHEMAS} different schemas")
        self.schemas.append(schema)
        self.digest.update(schema_text(schema).encode())
        return ordinal

    def _refuse_format(self, value: Mapping[str, object]) -> NoReturn:
        raise NotADatasetError(
            f"{self.place}: shard {self.count} has the format {str(value['format'])[:100]!r}, "
            "expected mds, json, csv, tsv or xsv; write the dataset again with `headrace convert`",
            place=self.place,
        )


def check_shards(index: Index) -> None:
    """Check a stored index, as `decode_index` checks shard by shard.

    Raises:
        ValueError: A shard is impossible; the message says which and why.
    """
    ordinals, counts = index.schema_ordinals, index.sample_counts
    sizes = np.stack([counts, index.raw_bytes, index.stored_bytes])
    is_bad = (ordinals < 0) | (ordinals >= len(index.schemas))
    is_bad |= ((sizes < 0) | (sizes > MAX_SHARD_BYTES)).any(axis=0)
    if is_bad.any():
        raise ValueError(f"shard {int(is_bad.argmax())} has impossible counts")
    is_text = np.array([schema.text is not None for schema in index.schemas], bool)[ordinals]
    is_bad = index.raw_bytes < np.where(is_text, counts, header_bytes(counts))
    if is_bad.any():
        raise ValueError(f"shard {int(is_bad.argmax())} has impossible counts")
    for names in {id(part): part for part in (index.raw_names, index.stored_names)}.values():
        for name in _each(names):
            problem = None if _PLAIN_NAME.fullmatch(name) else name_problem(name)
            if problem is not None:
                raise ValueError(f"basename {name[:200]!r}: {problem}")
    for hashes in {id(part): part for part in (index.raw_hashes, index.stored_hashes)}.values():
        for text in _each(hashes):
            algorithm, _, digest = text.partition(":")
            if text and (algorithm not in HASHES or not digest.isalnum()):
                raise ValueError(f"hash {text[:200]!r} is not one of {sorted(HASHES)}")
    _check_distinct(index)


def _check_distinct(index: Index) -> None:
    """Refuse an index with two shards of one name: one would be served in the other's place."""
    names = index.stored_names
    if pc.count_distinct(names).as_py() == len(names):
        return
    counts = pc.value_counts(names).sort("descending", by="counts")
    raise ValueError(f"the file {counts[0]['values'].as_py()[:200]} is named by two shards")


def _each(texts: pa.StringArray) -> Iterator[str]:
    """Yield texts, with few Python objects at a time."""
    for start in range(0, len(texts), _PART_SHARDS):
        for text in texts.slice(start, _PART_SHARDS).to_pylist():
            assert text is not None  # an index has no nulls
            yield text


def _file(value: object, key: str) -> _File:
    if not isinstance(value, dict):
        raise ValueError(f"{key} is not a JSON object")  # noqa: TRY004 - the file's fault, not a type's
    name = value["basename"]
    if not isinstance(name, str):
        raise ValueError(f"the basename of {key} is not text")  # noqa: TRY004 - as above
    if not _PLAIN_NAME.fullmatch(name):
        problem = name_problem(name)
        if problem is not None:
            raise ValueError(f"basename {name[:200]!r} of {key}: {problem}")
    size = _integer(value, "bytes")
    hashes = value.get("hashes")
    if not hashes:
        return _File(name, size, "", "")
    texts = _hash_texts(hashes, key)
    return _File(name, size, texts[fastest(texts)], ",".join(texts.values()))


def _hash_texts(hashes: object, key: str) -> Mapping[str, str]:
    """Return ``algorithm:digest`` by algorithm, sorted."""
    if not isinstance(hashes, dict):
        raise ValueError(f"the hashes of {key} are not a JSON object")  # noqa: TRY004 - as above
    texts = {}
    for algorithm in sorted(hashes):
        digest = hashes[algorithm]
        if algorithm not in HASHES or not isinstance(digest, str) or not digest.isalnum():
            raise ValueError(
                f"hash {str(algorithm)[:100]!r} of {key} is not one of {sorted(HASHES)}"
            )
        texts[algorithm] = f"{algorithm}:{digest}"
    return texts


def _check_hashes(value: Mapping[str, object], *files: _File) -> None:
    """Refuse files without a hash that the shard says they have, so that none is lost unseen."""
    listed = value.get("hashes") or []
    if not isinstance(listed, list):
        raise ValueError("hashes is not a list")  # noqa: TRY004 - the file's fault, not a type's
    for file in files:
        found = {text.partition(":")[0] for text in file.hashes.split(",")}
        missing = [str(name)[:100] for name in listed if name not in found]
        if missing:
            raise ValueError(f"file {file.name} has no hash {missing[0]!r}, which hashes lists")


def _integer(value: Mapping[str, object], key: str) -> int:
    number = value[key]
    if type(number) is not int or not 0 <= number <= MAX_SHARD_BYTES:
        raise ValueError(f"{key} is {str(number)[:100]}, expected 0 to {MAX_SHARD_BYTES}")
    return number
