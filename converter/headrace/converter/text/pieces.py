"""The second of two passes: read checked files in pieces, with the types that the first chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from headrace.converter.text.cast import cast_column
from headrace.converter.text.chunks import Chunk, chunks_of, known_chunks
from headrace.converter.text.delimited import RecordFormat, declared_unfit
from headrace.converter.text.files import TextFile
from headrace.converter.text.json_records import JsonFile
from headrace.converter.text.json_rows import batch_of
from headrace.converter.text.lines import Lines
from headrace.converter.text.refused import LeftOut
from headrace.converter.text.types import PARSED, converted
from headrace.errors import BadArgumentError, HeadraceError

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one file. Picklable.

    Attributes:
        reader: How to read it.
        file: The file.
        start: Where it starts in the file's text, in bytes.
        stop: Where it ends; `None` is the end of the file.
        line: The line on which it starts, counted from 1.
        digest: XXH3 digest of its text in the first pass.
        left_out: Indices of JSON records that the first pass left out.
        clean_ends: Where chunks of CSV end, if no record was refused; empty otherwise.
    """

    reader: RecordFormat | JsonFile | Lines
    file: TextFile
    start: int
    stop: int | None
    line: int
    digest: int
    left_out: frozenset[int] = frozenset()
    clean_ends: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TextPieces:
    """Text files as `headrace.converter.sources.pieces.Pieces`. Picklable.

    Attributes:
        schema: The schema of every batch.
        pieces: The pieces, in the order of files and of their records.
        settled: Keys of the types of CSV columns without a declared type.
        types: The declared types by column.
        left_out: What the conversion leaves out.
    """

    schema: pa.Schema
    pieces: tuple[Piece, ...]
    settled: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, pa.DataType] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)

    @property
    def count(self) -> int:
        """Number of pieces."""
        return len(self.pieces)

    @property
    def raw_bytes(self) -> int:
        """Bytes of the text; 0 if unknown, as for compressed files."""
        files = {piece.file.name: piece.file for piece in self.pieces}.values()
        is_known = all(file.is_plain and file.stored_bytes for file in files)
        return sum(file.stored_bytes for file in files) if is_known else 0

    def read(self, piece: int) -> Iterator[pa.RecordBatch]:
        """Yield the samples of one piece.

        Raises:
            BadArgumentError: The file has changed since the first pass.
        """
        part = self.pieces[piece]
        digest = xxhash.xxh3_64()
        read = self._clean if part.clean_ends else self._chunks
        if isinstance(part.reader, JsonFile):
            read = self._records
        try:
            yield from read(part, digest)
        except (HeadraceError, pa.ArrowException) as error:
            raise _changed(part) from error
        if digest.intdigest() != part.digest:
            raise _changed(part)

    def _chunks(self, part: Piece, digest: xxhash.xxh3_64) -> Iterator[pa.RecordBatch]:
        reader = part.reader
        assert not isinstance(reader, JsonFile), "it has records"
        text = part.file.read(part.start, part.stop)
        for chunk in chunks_of(
            text, reader.last_end, name=part.file.name, start=part.start, line=part.line
        ):
            digest.update(chunk.content)
            yield from self._rows(reader, chunk).to_batches()

    def _clean(self, part: Piece, digest: xxhash.xxh3_64) -> Iterator[pa.RecordBatch]:
        """Read what the first pass found to be right, which the digest says that it still is."""
        reader = part.reader
        assert isinstance(reader, RecordFormat), "of CSV"
        parsed = {name: PARSED[key] for name, key in self.settled.items() if key in PARSED}
        text = part.file.read(part.start, part.stop)
        for content in known_chunks(text, part.clean_ends, part.start):
            digest.update(content)
            table = reader.checked_rows(content, parsed)
            columns = [
                self._column(name, table) if name not in parsed else table.column(name)
                for name in self.schema.names
            ]
            yield from pa.Table.from_arrays(columns, schema=self.schema).to_batches()

    def _rows(self, reader: RecordFormat | Lines, chunk: Chunk) -> pa.Table:
        if isinstance(reader, Lines):
            return reader.rows(chunk)[0]
        table, _ = reader.rows(chunk, declared_unfit(self.types))
        columns = [self._column(name, table) for name in self.schema.names]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _column(self, name: str, table: pa.Table) -> Array:
        text: Array = table.column(name).combine_chunks()
        kind = self.types.get(name)
        return converted(text, self.settled[name]) if kind is None else cast_column(text, kind)

    def _records(self, part: Piece, digest: xxhash.xxh3_64) -> Iterator[pa.RecordBatch]:
        assert isinstance(part.reader, JsonFile), "it has chunks"
        first = 0
        for rows in part.reader.rows(part.start, part.stop, part.line):
            digest.update(rows.content)
            kept = [value for at, value in enumerate(rows.values, first) if at not in part.left_out]
            first += len(rows.values)
            if kept:
                yield batch_of(kept, self.schema)


def _changed(part: Piece) -> BadArgumentError:
    return BadArgumentError(
        f"{part.file.name} was changed while it was read: from line {part.line} on it differs from "
        "what it was when its records were checked; nothing was written, try again when nothing "
        "writes to it",
        field="SRC",
    )
