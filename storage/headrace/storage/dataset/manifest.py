"""The manifest of a version of a dataset, and its codec, the shard table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError, UnsupportedColumnError
from headrace.storage.dataset.newer_format import newer_format
from headrace.storage.shard.arrow_message import check_plain_file
from headrace.storage.shard.block_table import PAGE_BLOCKS, PageEntry
from headrace.storage.shard.buffers import values_of
from headrace.storage.shard.classes import classes_of
from headrace.storage.shard.even_blocks import block_samples_problem
from headrace.storage.shard.fingerprint import fingerprint_of
from headrace.storage.shard.types import schema_from_text, schema_to_text
from headrace.storage.store.names import name_problem

MANIFEST_VERSION = 2
MAX_SHARDS = 10_000_000
_SHARD_FIELDS = (
    pa.field("name", pa.string(), nullable=False),
    pa.field("sample_count", pa.int64(), nullable=False),
    pa.field("raw_bytes", pa.int64(), nullable=False),
    pa.field("stored_bytes", pa.int64(), nullable=False),
    pa.field("block_count", pa.int32(), nullable=False),
    pa.field("block_samples", pa.int64(), nullable=False),
)
_NUMBER_TYPES: dict[str, np.dtype[Any]] = {
    "sample_count": np.dtype("<i8"),
    "raw_bytes": np.dtype("<i8"),
    "stored_bytes": np.dtype("<i8"),
    "block_count": np.dtype("<i4"),
    "block_samples": np.dtype("<i8"),
}
_KEYS = ("headrace.version", "headrace.schema", "headrace.stored_schema", "headrace.pages")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Manifest:
    """One version of a dataset: its shards in order, and the pages that list its blocks.

    Attributes:
        fingerprint: 32 hexadecimal digits.
        schema: The columns that readers see.
        stored_schema: The columns that shards hold.
        names: ``(shards,)`` strings: names of the shards.
        sample_counts: ``(shards,) int64``, each >= 1.
        raw_bytes: ``(shards,) int64``.
        stored_bytes: ``(shards,) int64``.
        block_counts: ``(shards,) int64``, each >= 1.
        block_samples: ``(shards,) int64``, samples of every block of a shard except for its last,
            which may have fewer; 0 if blocks differ.
        pages: Pages of the block table.
    """

    fingerprint: str
    schema: pa.Schema
    stored_schema: pa.Schema
    names: pa.StringArray
    sample_counts: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]
    block_counts: NDArray[np.int64]
    block_samples: NDArray[np.int64]
    pages: tuple[PageEntry, ...]

    @property
    def shard_count(self) -> int:
        """Number of shards."""
        return len(self.sample_counts)

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return int(self.block_counts.sum())

    @property
    def sample_count(self) -> int:
        """Number of samples."""
        return int(self.sample_counts.sum())

    def __repr__(self) -> str:
        return (
            f"Manifest({self.fingerprint}: {self.sample_count:,} samples in "
            f"{self.shard_count:,} shards, {int(self.raw_bytes.sum()):,} bytes raw, "
            f"{int(self.stored_bytes.sum()):,} stored)"
        )


def encode_shard_table(manifest: Manifest) -> bytes:
    """Return the shard table as an Arrow IPC file."""
    pages = [
        [page.offset, page.stored_bytes, page.first_sample, page.digest] for page in manifest.pages
    ]
    metadata: dict[bytes | str, bytes | str] = {
        "headrace.version": str(MANIFEST_VERSION),
        "headrace.schema": schema_to_text(manifest.schema),
        "headrace.stored_schema": schema_to_text(manifest.stored_schema),
        "headrace.pages": json.dumps(pages, separators=(",", ":")),
    }
    columns: list[pa.Array[Any]] = [
        manifest.names,
        pa.array(manifest.sample_counts),
        pa.array(manifest.raw_bytes),
        pa.array(manifest.stored_bytes),
        pa.array(manifest.block_counts.astype(np.int32)),
        pa.array(manifest.block_samples),
    ]
    schema = pa.schema(_SHARD_FIELDS, metadata=metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    return sink.getvalue().to_pybytes()


def decode_shard_table(content: bytes, *, fingerprint: str, place: str) -> Manifest:
    """Return the manifest in a shard table, verified against its fingerprint.

    Args:
        content: The bytes of the file.
        fingerprint: The fingerprint that the manifest must have.
        place: The place of the file, for the error.

    Raises:
        ManifestCorruptError: The file is damaged, malicious, or of an unknown version;
            `NewerFormatError` if that version is newer than this headrace.
    """
    try:
        manifest = _decode(content, fingerprint)
    except _NewerError as error:
        raise newer_format(f"shard table {place}", str(error)) from error
    except (
        _DamageError,
        pa.ArrowException,
        UnsupportedColumnError,
        EOFError,
        OSError,
        ValueError,
        RecursionError,
    ) as error:
        raise ManifestCorruptError(
            f"shard table {place}: {error}; restore it or convert the data again", place=place
        ) from error
    return manifest


class _DamageError(Exception):
    """A fault in a table; the caller knows which table."""


class _NewerError(Exception):
    """The table is of a newer version; the caller knows which table."""


def _decode(content: bytes, fingerprint: str) -> Manifest:
    check_plain_file(content, limit_bytes=len(content))
    reader = pa.ipc.open_file(pa.py_buffer(content))
    metadata = _metadata(reader.schema)
    if reader.num_record_batches != 1:
        raise _DamageError(f"{reader.num_record_batches} record batches found, 1 expected")
    batch = reader.get_batch(0)
    batch.validate(full=True)
    names, numbers = _columns(batch)
    manifest = Manifest(
        fingerprint=fingerprint,
        schema=schema_from_text(metadata["headrace.schema"]),
        stored_schema=schema_from_text(metadata["headrace.stored_schema"]),
        names=names,
        sample_counts=numbers["sample_count"],
        raw_bytes=numbers["raw_bytes"],
        stored_bytes=numbers["stored_bytes"],
        block_counts=numbers["block_count"],
        block_samples=numbers["block_samples"],
        pages=_pages(metadata["headrace.pages"]),
    )
    _check_numbers(manifest)
    _check_block_samples(manifest)
    _check_names(manifest.names)
    for field in (*manifest.schema, *manifest.stored_schema):
        classes_of(field)  # raises if the metadata is not valid
    found = _fingerprint(manifest)
    if found != fingerprint:
        raise _DamageError(f"fingerprint {found} found, {fingerprint} expected")
    return manifest


def _metadata(schema: pa.Schema) -> Mapping[str, str]:
    found = {key.decode(): value.decode() for key, value in (schema.metadata or {}).items()}
    version = found.get("headrace.version", str(MANIFEST_VERSION))
    if version != str(MANIFEST_VERSION):
        is_newer = version.isdecimal() and int(version) > MANIFEST_VERSION
        kind = _NewerError if is_newer else _DamageError
        raise kind(
            f"manifest version {version[:100]} found, but this headrace reads {MANIFEST_VERSION}"
        )
    missing = [key for key in _KEYS if key not in found]
    if missing:
        raise _DamageError(f"no metadata {', '.join(missing)}")
    return found


def _columns(batch: pa.RecordBatch) -> tuple[pa.StringArray, dict[str, NDArray[np.int64]]]:
    wanted = pa.schema(_SHARD_FIELDS)
    if not batch.schema.equals(wanted, check_metadata=False):
        raise _DamageError(f"columns {batch.schema.names} found, {wanted.names} expected")
    if any(column.null_count for column in batch.columns):
        raise _DamageError("nulls found, none expected")
    if batch.num_rows > MAX_SHARDS:
        raise _DamageError(f"{batch.num_rows} shards found, at most {MAX_SHARDS} expected")
    numbers = {
        name: values_of(column, _NUMBER_TYPES[name]).astype(np.int64)
        for name, column in zip(wanted.names[1:], batch.columns[1:], strict=True)
    }
    return cast("pa.StringArray", batch.column(0)), numbers


def _check_numbers(manifest: Manifest) -> None:
    lowest = {"sample_counts": 1, "raw_bytes": 0, "stored_bytes": 1, "block_counts": 1}
    for column, low in lowest.items():
        values: NDArray[np.int64] = getattr(manifest, column)
        if len(values) and int(values.min()) < low:
            shard = int(values.argmin())
            raise _DamageError(f"{column} of shard {shard} is {values[shard]}, expected >= {low}")
        # A sum of int64 may wrap around, but not a sum of floats.
        if float(values.sum(dtype=np.float64)) > 2.0**62:
            raise _DamageError(f"the sum of {column} exceeds 2**62")
    wanted = -(-manifest.block_count // PAGE_BLOCKS)
    if len(manifest.pages) != wanted:
        raise _DamageError(f"{len(manifest.pages)} pages found, {wanted} expected")
    starts = [page.first_sample for page in manifest.pages]
    if starts and (
        starts[0] != 0 or sorted(starts) != starts or starts[-1] >= manifest.sample_count
    ):
        raise _DamageError("pages do not start at ascending samples")


def _check_block_samples(manifest: Manifest) -> None:
    problem = block_samples_problem(
        manifest.sample_counts, manifest.block_counts, manifest.block_samples
    )
    if problem is not None:
        raise _DamageError(problem)


def _check_names(names: pa.StringArray) -> None:
    # The converter's names need no loop, which would take 0.2 s for 100,000 names.
    if pc.all(pc.match_substring_regex(names, _PLAIN_NAME), min_count=0).as_py():
        return
    for shard, value in enumerate(names.to_pylist()):
        name = value or ""
        problem = name_problem(name)
        if problem is not None:
            raise _DamageError(f"name {name[:200]!r} of shard {shard}: {problem}")


def _fingerprint(manifest: Manifest) -> str:
    return fingerprint_of(
        served=manifest.schema,
        stored=manifest.stored_schema,
        sample_counts=manifest.sample_counts,
        raw_bytes=manifest.raw_bytes,
        block_counts=manifest.block_counts,
        block_samples=manifest.block_samples,
        page_digests=[bytes.fromhex(page.digest) for page in manifest.pages],
    )


def _pages(text: str) -> tuple[PageEntry, ...]:
    rows = json.loads(text)
    if not isinstance(rows, list):
        raise _DamageError("metadata headrace.pages is not a list")
    return tuple(_page(row) for row in rows)


def _page(row: object) -> PageEntry:
    match row:
        case [int(offset), int(stored_bytes), int(first_sample), str(digest)]:
            if min(offset, first_sample) < 0 or not 0 < stored_bytes <= _MAX_PAGE_BYTES:
                raise _DamageError(f"page {row} is outside its limits")
            return PageEntry(offset, stored_bytes, first_sample, digest)
        case _:
            raise _DamageError(f"page {str(row)[:200]} is not [offset, bytes, sample, digest]")


_PLAIN_NAME = "^[0-9A-Za-z][0-9A-Za-z_=-]{0,99}(\\.[0-9A-Za-z]{1,20})?$"
_MAX_PAGE_BYTES = 1 << 20  # 4096 rows of 28 bytes and a header stay far below
