"""The first of two passes: check every record, choose every type, and cut files into pieces.

Contract of `text_pieces`:

1. Success: every record has been read once. Reading the pieces gives exactly the records that were
   not refused, or an error if a file has changed meanwhile.
2. A record that cannot be read exactly: an error names file and line before anything is written,
   or the record is left out, counted and listed.
3. Memory: a few chunks of 4 MiB for each thread, and one record of at most 64 MiB.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa
import xxhash

from headrace.converter.progress.progress import Progress
from headrace.converter.text.almost_typed import AlmostTyped, Exceptions, StaysText
from headrace.converter.text.checking import Checking
from headrace.converter.text.chunks import MAX_RECORD_BYTES, Chunk, chunks_of
from headrace.converter.text.delimited import (
    RecordFormat,
    compare_headers,
    declared_unfit,
    read_header,
)
from headrace.converter.text.files import (
    STEP_BYTES,
    TextFile,
    find_files,
    merged_splits,
    refuse_lost_partitions,
)
from headrace.converter.text.json_kinds import Kind, arrow_type
from headrace.converter.text.json_records import JsonFile, JsonRows, layout_of
from headrace.converter.text.json_rows import judged
from headrace.converter.text.lines import LINE_COLUMN, Lines
from headrace.converter.text.options import TextKind, TextOptions
from headrace.converter.text.pieces import Piece, TextPieces
from headrace.converter.text.records import count_lines, split
from headrace.converter.text.refused import LeftOut, Refusal, Refusals
from headrace.converter.text.types import TEXT, ColumnGuess, holding, type_of
from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.storage import StoreOptions

if TYPE_CHECKING:
    Unfit = Callable[[str, "pa.Array[Any]"], Sequence[tuple[int, str]]]

_Made = TypeVar("_Made")

_MOST_THREADS = 8
_PIECE_BYTES = 64 << 20  # a shard's worth, as for other sources


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much text is read and held at once.

    Attributes:
        piece_bytes: How much text one task reads.
        step_bytes: How much text is held at once; more only if one record is larger.
    """

    piece_bytes: int = _PIECE_BYTES
    step_bytes: int = STEP_BYTES


def text_pieces(
    source: str,
    kind: TextKind,
    *,
    how: TextOptions,
    types: Mapping[str, pa.DataType],
    options: StoreOptions,
    threads: int | None = None,
    sizes: Sizes | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> TextPieces:
    """Check all records of the files at a path or URL, and return how to read them.

    Args:
        source: A file, or a folder of files.
        kind: The kind of the files.
        how: How to read them.
        types: The declared types by column.
        options: How to reach the files.
        threads: Threads that check; `None` is one a core, at most 8.
        sizes: How much text is read and held at once; None for `Sizes()`.
        progress: Called a few times a second with how much is checked.

    Raises:
        BadArgumentError: Records cannot be read exactly, headers differ, or there are no files.
        HeadraceError: The store failed or refused.
    """
    sizes = sizes or Sizes()
    files, others = find_files(
        source, kind, encoding=how.encoding, options=options, step_bytes=sizes.step_bytes
    )
    refusals = Refusals(how.on_error == "skip")
    untyped: Sequence[StaysText] = ()
    checking = Checking(files, progress)
    with _Pool(threads or default_threads()) as pool:
        if kind == "json":
            made = _survey_json(files, types, refusals, sizes.piece_bytes, checking)
        elif kind == "csv":
            cutters = list(_csv_cutters(files, how, sizes.piece_bytes))
            made, untyped = _survey_csv(cutters, types, refusals, pool, checking)
        else:
            made = _survey_lines(files, refusals, pool, sizes.piece_bytes, checking)
    refusals.raise_any()
    refuse_lost_partitions(files, made.schema.names)
    left_out: LeftOut = refusals.left_out(others, untyped, merged_splits(files))
    return TextPieces(made.schema, made.pieces, made.settled, types, left_out)


def default_threads() -> int:
    """Return one thread a core, at most 8: each takes about 100 MiB, and only one cuts files."""
    return min(os.cpu_count() or 1, _MOST_THREADS)


class _Pool:
    """Threads that run a stream of tasks in order, a few tasks ahead."""

    def __init__(self, threads: int) -> None:
        self._ahead = threads + 4
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="headrace-check")

    def map(self, tasks: Iterable[Callable[[], _Made]]) -> Iterator[_Made]:
        """Yield the result of each task, in order."""
        coming: deque[Future[_Made]] = deque()
        for task in tasks:
            coming.append(self._pool.submit(task))
            if len(coming) > self._ahead:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)


@dataclass(slots=True)
class _Cutter:
    """Makes pieces of the chunks of one file."""

    reader: RecordFormat | Lines
    file: TextFile
    piece_bytes: int
    start: int = 0
    line: int = 1
    size: int = 0
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)
    pieces: list[Piece] = field(default_factory=list)
    ends: list[list[int]] = field(default_factory=lambda: [[]])
    refused: set[int] = field(default_factory=set)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the chunks of the file, and add them to pieces."""
        parts = self.file.read(self.start)
        for chunk in chunks_of(
            parts, self.reader.last_end, name=self.file.name, start=self.start, line=self.line
        ):
            if (
                self.size
                and self.size + len(chunk.content) > self.piece_bytes
                and self.file.is_plain
            ):
                self._end(chunk.start)
                self.start, self.line, self.size = chunk.start, chunk.line, 0
                self.digest.reset()
            self.size += len(chunk.content)
            self.digest.update(chunk.content)
            self.ends[-1].append(chunk.stop)
            yield chunk
        self._end(None)

    def _end(self, stop: int | None) -> None:
        digest = self.digest.intdigest()
        self.pieces.append(Piece(self.reader, self.file, self.start, stop, self.line, digest))
        self.ends.append([])

    def checked_pieces(self) -> Iterator[Piece]:
        """Yield the pieces; those with a refused record are read as carefully as at first."""
        for piece, ends in zip(self.pieces, self.ends[:-1], strict=True):
            is_clean = self.refused.isdisjoint(ends)
            yield replace(piece, clean_ends=tuple(ends)) if is_clean else piece


def _survey_lines(
    files: Sequence[TextFile],
    refusals: Refusals,
    pool: _Pool,
    piece_bytes: int,
    checking: Checking,
) -> TextPieces:
    cutters = [_Cutter(Lines(at, file.name), file, piece_bytes) for at, file in enumerate(files)]
    for cutter in cutters:
        tasks = (partial(_refused_lines, cutter.reader, chunk) for chunk in cutter.chunks())
        for found, size in pool.map(tasks):
            refusals.add(found)
            checking.add(size)
    schema = pa.schema([pa.field(LINE_COLUMN, pa.string())])
    return TextPieces(schema, tuple(piece for cutter in cutters for piece in cutter.pieces))


def _refused_lines(reader: RecordFormat | Lines, chunk: Chunk) -> tuple[Sequence[Refusal], int]:
    return reader.rows(chunk)[1], len(chunk.content)


@dataclass(slots=True)
class _Column:
    """What is known about a CSV column."""

    guess: ColumnGuess = field(default_factory=ColumnGuess)
    almost: AlmostTyped = field(default_factory=AlmostTyped)


@dataclass(frozen=True, slots=True)
class _ChunkFacts:
    """A checked chunk of CSV: by column, the guesses that hold, and the exceptions to others."""

    reader: RecordFormat
    chunk: Chunk
    refused: Sequence[Refusal]
    held: Mapping[str, tuple[Sequence[str], bool]]
    exceptions: Mapping[str, Exceptions]

    def place(self, value: str, row: int) -> tuple[str, bool]:
        """Return the place of a value in a row, and whether it is quoted there."""
        line, record = self.reader.place_of(self.chunk, row, self.refused)
        return f"{self.reader.name}:{line}", f'"{value}"'.encode() in record


def _survey_csv(
    cutters: Sequence[_Cutter],
    types: Mapping[str, pa.DataType],
    refusals: Refusals,
    pool: _Pool,
    checking: Checking,
) -> tuple[TextPieces, list[StaysText]]:
    names = cutters[0].reader.columns if isinstance(cutters[0].reader, RecordFormat) else ()
    columns = {name: _Column() for name in names if name not in types}
    unfit = declared_unfit(types)
    _refuse_unknown_names(types, names)
    for cutter in cutters:
        tasks = (
            partial(_check_csv, cutter.reader, chunk, columns, unfit) for chunk in cutter.chunks()
        )
        for checked in pool.map(tasks):
            refusals.add(checked.refused)
            if checked.refused:
                cutter.refused.add(checked.chunk.stop)
            checking.add(len(checked.chunk.content))
            for name, (keys, has_values) in checked.held.items():
                columns[name].guess.seen(keys, has_values=has_values)
                columns[name].almost.seen(checked.exceptions[name], checked.place)
    settled = {name: column.guess.settled for name, column in columns.items()}
    schema = pa.schema(
        [pa.field(name, types[name] if name in types else type_of(settled[name])) for name in names]
    )
    pieces = tuple(piece for cutter in cutters for piece in cutter.checked_pieces())
    told = [columns[name].almost.told(name) for name, key in settled.items() if key == TEXT]
    return TextPieces(schema, pieces, settled, types), [each for each in told if each]


def _refuse_unknown_names(types: Mapping[str, pa.DataType], columns: Sequence[str]) -> None:
    for name, kind in types.items():
        if name not in columns:
            raise ColumnNotFoundError(
                f"types names {name!r}, but the header has {', '.join(columns)}", column=name
            )
        try:
            pa.array([], pa.string()).cast(kind)
        except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise UnsupportedColumnError(
                f"types has {kind} for the column {name!r}, to which text cannot be converted; "
                "leave it out",
                column=name,
                type=str(kind),
            ) from error


def _check_csv(
    reader: RecordFormat | Lines,
    chunk: Chunk,
    columns: Mapping[str, _Column],
    unfit: Unfit | None,
) -> _ChunkFacts:
    assert isinstance(reader, RecordFormat), "of CSV"
    table, refused = reader.rows(chunk, unfit)
    held: dict[str, tuple[Sequence[str], bool]] = {}
    exceptions: dict[str, Exceptions] = {}
    for name, column in columns.items():
        text = table.column(name).combine_chunks()
        # Other threads may drop guesses meanwhile; those are then tried in vain, which is harmless.
        held[name] = holding(text, tuple(column.guess.keys))
        exceptions[name] = column.almost.exceptions(text, held[name][0])
    return _ChunkFacts(reader, chunk, refused, held, exceptions)


def _csv_cutters(
    files: Sequence[TextFile], how: TextOptions, piece_bytes: int
) -> Iterator[_Cutter]:
    first: tuple[str, tuple[str, ...]] | None = None
    for at, file in enumerate(files):
        delimiter = how.delimiter_of(file.name)
        if how.header:
            is_chosen = how.delimiter is not None
            names, start, line = _header(file, at, delimiter, is_chosen=is_chosen)
        else:
            names, start, line = _numbered(file, delimiter, first[1] if first else ()), 0, 1
        if not names:
            continue  # an empty file without a header has no records
        first = first or (file.name, names)
        if how.header:
            compare_headers(names, first[1], file=file.name, first=first[0])
        reader = RecordFormat(at, file.name, names, first[1], ord(delimiter), how.null_values)
        yield _Cutter(reader, file, piece_bytes, start, line)
    if first is None:
        raise BadArgumentError(
            f"there is no record in {', '.join(file.name for file in files[:5])}, so the columns "
            "are unknown; expected at least one",
            field="SRC",
        )


def _header(
    file: TextFile, at: int, delimiter: str, *, is_chosen: bool
) -> tuple[tuple[str, ...], int, int]:
    head = _first_record(file, delimiter)
    names, stop = read_header(head, file, number=at, delimiter=delimiter, is_chosen=is_chosen)
    return names, stop, 1 + count_lines(head[:stop])


def _numbered(file: TextFile, delimiter: str, known: tuple[str, ...]) -> tuple[str, ...]:
    record = next(split(_first_record(file, delimiter), ord(delimiter)), None)
    if record is None:
        return ()
    return known or tuple(f"column{place}" for place in range(max(1, record.width)))


def _first_record(file: TextFile, delimiter: str) -> bytes:
    head = b""
    for part in file.read():
        head += part
        record = next(split(head, ord(delimiter)), None)
        if (record and record.is_whole) or len(head) > MAX_RECORD_BYTES:
            break
    return head


def _survey_json(
    files: Sequence[TextFile],
    types: Mapping[str, pa.DataType],
    refusals: Refusals,
    piece_bytes: int,
    checking: Checking,
) -> TextPieces:
    survey = _JsonSurvey(types, refusals, piece_bytes, checking)
    for at, file in enumerate(files):
        survey.read(JsonFile(at, file, layout_of(file)))
    kind = survey.kind
    if not kind.fields:
        refusals.raise_any()
        raise BadArgumentError(
            f"there is no record with a value in {', '.join(file.name for file in files[:5])}; "
            "expected JSON objects",
            field="SRC",
        )
    schema = pa.schema([pa.field(name, arrow_type(part)) for name, part in kind.fields.items()])
    return TextPieces(schema, tuple(survey.pieces))


@dataclass(slots=True)
class _JsonSurvey:
    """Judges the records of all files, one after another, and cuts the files into pieces."""

    types: Mapping[str, pa.DataType]
    refusals: Refusals
    piece_bytes: int
    checking: Checking
    kind: Kind = field(default_factory=lambda: Kind("struct"))
    pieces: list[Piece] = field(default_factory=list)

    def read(self, reader: JsonFile) -> None:
        """Add the pieces of one file."""
        cuts = reader.layout == "lines" and reader.file.is_plain
        piece = _JsonPiece(reader)
        for rows in reader.rows():
            if cuts and piece.size and piece.size + len(rows.content) > self.piece_bytes:
                self.pieces.append(piece.ended(piece.start + piece.size))
                piece = _JsonPiece(reader, piece.start + piece.size, piece.next_line)
                piece.line = piece.next_line
            result = judged(rows, self.kind, source=reader, types=self.types)
            self.refusals.add((*rows.refusals, *result.refusals))
            self.kind = result.kind
            piece.add(rows, result.left_out)
            self.checking.add(len(rows.content))
        self.pieces.append(piece.ended(None))


@dataclass(slots=True)
class _JsonPiece:
    """A piece that is being put together."""

    reader: JsonFile
    start: int = 0
    next_line: int = 1
    line: int = 1
    size: int = 0
    count: int = 0
    left_out: set[int] = field(default_factory=set)
    digest: xxhash.xxh3_64 = field(default_factory=xxhash.xxh3_64)

    def add(self, rows: JsonRows, left_out: Iterable[int]) -> None:
        self.left_out |= {self.count + place for place in left_out}
        self.count += len(rows.values)
        self.size += len(rows.content)
        self.next_line = rows.next_line
        self.digest.update(rows.content)

    def ended(self, stop: int | None) -> Piece:
        return Piece(
            self.reader,
            self.reader.file,
            self.start,
            stop,
            self.line,
            self.digest.intdigest(),
            frozenset(self.left_out),
        )
