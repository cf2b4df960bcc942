"""Write MDS shards in the format of mosaicml-streaming."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from headrace.errors import BadArgumentError, WorldError
from headrace.storage.mds.choose import choose_encoding
from headrace.storage.mds.compression import Compression, compressed, parse_compression
from headrace.storage.mds.encode import encode_samples
from headrace.storage.mds.hashes import HASHES, digest_of
from headrace.storage.mds.samples import MAX_SHARD_BYTES, WORD, header_bytes
from headrace.storage.shard.buffers import offsets_of
from headrace.storage.store.names import check_name
from headrace.storage.store.store import Store

DEFAULT_SIZE_LIMIT = 1 << 26  # the default of Mosaic's writer
DEFAULT_HASHES = ("xxh3_64",)  # the fastest one: 64 MiB in about 10 ms


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a shard.

    Attributes:
        basename: Its name in the dataset.
        size: Its size in bytes.
        hashes: Digests by algorithm.
    """

    basename: str
    size: int
    hashes: Mapping[str, str]

    def as_json(self) -> dict[str, object]:
        """Return the file's entry for an index."""
        return {"basename": self.basename, "bytes": self.size, "hashes": dict(self.hashes)}


@dataclass(frozen=True, slots=True)
class MdsShardEntry:
    """The facts about one finished shard for an index. Picklable.

    Attributes:
        sample_count: The number of samples in the shard.
        config: The description in the shard, which the index repeats.
        raw: The uncompressed file.
        stored: The compressed file, or `None` if it is not compressed.
    """

    sample_count: int
    config: Mapping[str, object]
    raw: FileEntry
    stored: FileEntry | None

    def as_json(self) -> dict[str, object]:
        """Return the shard's entry for an index."""
        return {
            **self.config,
            "samples": self.sample_count,
            "raw_data": self.raw.as_json(),
            "zip_data": None if self.stored is None else self.stored.as_json(),
        }


class MdsWriter:
    """Write the shards of one dataset; not safe for several threads.

    Samples are cut into shards by the rule of Mosaic's writer, except that a first sample above the
    limit does not cause an empty first shard. Memory is limited to one shard, raw and compressed,
    and one batch.

    1. Success: `close` returns the entries of all shards; `commit_mds` makes them a dataset.
    2. Failure or cancel: `abort`, or leaving the ``with`` block without `close`, removes the
       written files.
    """

    def __init__(
        self,
        store: Store,
        schema: pa.Schema,
        *,
        folder: str = "",
        compression: str | None = None,
        hashes: Sequence[str] = DEFAULT_HASHES,
        size_limit: int = DEFAULT_SIZE_LIMIT,
    ) -> None:
        """Start to write.

        Args:
            store: The store of the dataset.
            schema: The schema of the batches; MDS does not support nulls.
            folder: The folder of the shards in the store: empty, or one name. Concurrent writers
                need different folders.
            compression: The compression, such as ``zstd`` or ``zstd:7``; `None` for none.
            hashes: The hashes to compute for each file, by their names for ``validate_hash`` of
                Mosaic's readers. Without any, changed bytes of a shard cannot be noticed, and
                headrace reads uncompressed shards by ranges; with one it reads and verifies each
                shard as a whole.
            size_limit: The maximum size of a shard in bytes, except for a shard with one sample.

        Raises:
            BadArgumentError: An argument is outside its range.
            UnsupportedColumnError: A column has a type that MDS cannot store.
        """
        _check(folder, hashes, size_limit)
        fields = sorted(schema, key=lambda field: field.name)
        self._schema = schema
        self._order = [schema.get_field_index(field.name) for field in fields]
        self._encodings = [choose_encoding(field) for field in fields]
        self._store = store
        self._folder = folder
        self._compression = _compression(compression)
        self._hashes = sorted(set(hashes))
        self._size_limit = size_limit
        self._config: dict[str, object] = {
            "column_encodings": [encoding.text for encoding in self._encodings],
            "column_names": [field.name for field in fields],
            "column_sizes": [encoding.size for encoding in self._encodings],
            "compression": compression,
            "format": "mds",
            "hashes": self._hashes,
            "size_limit": size_limit,
            "version": 2,
        }
        self._config_text = json.dumps(self._config, sort_keys=True).encode()
        self._pending: list[pa.LargeBinaryArray] = []
        self._pending_bytes = self._empty_bytes
        self._entries: list[MdsShardEntry] = []
        self._is_closed = False

    def append(self, batch: pa.RecordBatch) -> None:
        """Add the samples of ``batch``, which has the writer's schema and any number of rows.

        Raises:
            UnsupportedColumnError: A column contains a null, or values that MDS cannot store.
            BadArgumentError: The batch has another schema, or a sample has 4 GiB or more.
        """
        if not batch.schema.equals(self._schema, check_metadata=False):
            raise BadArgumentError(
                f"a batch with columns {batch.schema.names} found, expected the writer's schema "
                f"{self._schema.names}",
                field="batch",
            )
        samples = encode_samples(batch.select(self._order), self._encodings)
        costs = np.diff(offsets_of(samples)) + WORD.itemsize
        ends = np.cumsum(costs)
        start = 0
        while start < len(samples):
            before = int(ends[start - 1]) if start else 0
            room = self._size_limit - self._pending_bytes
            stop = max(start, int(np.searchsorted(ends, before + room, side="right")))
            if stop == start and not self._pending:
                stop = start + 1
            if stop > start:
                self._pending.append(samples.slice(start, stop - start))
                self._pending_bytes += int(ends[stop - 1]) - before
            if stop < len(samples):
                self._flush()
            start = stop

    def close(self) -> tuple[MdsShardEntry, ...]:
        """Write the remaining samples.

        Returns:
            The entries of all shards, in order; they are not in a dataset before `commit_mds`.
        """
        if self._pending:
            self._flush()
        self._is_closed = True
        return tuple(self._entries)

    def abort(self) -> None:
        """Remove the written files; has no effect after `close`."""
        if self._is_closed:
            return
        self._is_closed = True
        for entry in self._entries:
            with contextlib.suppress(WorldError):  # files left behind are not in any index
                self._store.delete((entry.stored or entry.raw).basename)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.abort()

    @property
    def _empty_bytes(self) -> int:
        return header_bytes(0) + len(self._config_text)

    def _flush(self) -> None:
        samples = pa.concat_arrays(self._pending)
        raw = self._shard(samples)
        name = f"shard.{len(self._entries):05d}.mds"
        basename = f"{self._folder}/{name}" if self._folder else name
        entry = MdsShardEntry(
            sample_count=len(samples),
            config=self._config,
            raw=self._file(basename, raw),
            stored=None,
        )
        content = raw
        if self._compression is not None:
            content = compressed(raw, self._compression)
            stored = self._file(basename + self._compression.suffix, content)
            entry = MdsShardEntry(entry.sample_count, entry.config, entry.raw, stored)
        self._entries.append(entry)
        self._store.write((entry.stored or entry.raw).basename, content)
        self._pending = []
        self._pending_bytes = self._empty_bytes

    def _shard(self, samples: pa.LargeBinaryArray) -> bytes:
        edges = offsets_of(samples).astype(np.int64)
        start = header_bytes(len(samples)) + len(self._config_text)
        offsets = edges - edges[0] + start
        if int(offsets[-1]) > MAX_SHARD_BYTES:
            raise BadArgumentError(
                f"a sample of {offsets[-1] - start} bytes found, a shard holds less than 4 GiB; "
                "leave its largest column out",
                field="batch",
            )
        count = np.array([len(samples)], WORD)
        values = memoryview(samples.buffers()[2] or b"")[int(edges[0]) : int(edges[-1])]
        parts = (count.tobytes(), offsets.astype(WORD).tobytes(), self._config_text, values)
        return b"".join(parts)

    def _file(self, basename: str, content: bytes) -> FileEntry:
        hashes = {name: digest_of(name, content) for name in self._hashes}
        return FileEntry(basename, len(content), hashes)


def check_writing(*, compression: str | None, hashes: Sequence[str], size_limit: int) -> None:
    """Refuse options that `MdsWriter` would refuse, before a job starts.

    Raises:
        BadArgumentError: There is no such compression or hash, or the size is outside its range.
    """
    _check("", hashes, size_limit)
    _compression(compression)


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that `MdsWriter` would refuse, before a job starts.

    Raises:
        UnsupportedColumnError: A column has a type that MDS cannot store.
    """
    for field in schema:
        choose_encoding(field)


def _check(folder: str, hashes: Sequence[str], size_limit: int) -> None:
    if folder:
        check_name(folder)
    if "/" in folder:
        raise BadArgumentError(f"folder is {folder!r}, expected one name", field="folder")
    unknown = sorted(set(hashes) - HASHES)
    if unknown:
        raise BadArgumentError(
            f"hashes hold {unknown}, expected some of {', '.join(sorted(HASHES))}", field="hashes"
        )
    if not 0 < size_limit <= MAX_SHARD_BYTES:
        raise BadArgumentError(
            f"size_limit is {size_limit}, expected 1 to {MAX_SHARD_BYTES}", field="size_limit"
        )


def _compression(text: str | None) -> Compression | None:
    try:
        return None if text is None else parse_compression(text)
    except ValueError as error:
        raise BadArgumentError(str(error), field="compression") from error
