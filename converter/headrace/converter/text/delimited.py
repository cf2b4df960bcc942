"""Parse CSV records into columns of text: null for empty fields, all else unchanged."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pyarrow as pa
from pyarrow import csv

from headrace.converter.text.cast import unfit_rows
from headrace.converter.text.chunks import Chunk
from headrace.converter.text.files import TextFile
from headrace.converter.text.records import (
    Record,
    bytes_problem,
    count_lines,
    end_of_records,
    quotes_are_regular,
    split,
)
from headrace.converter.text.refused import Refusal
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    Array = pa.Array[Any]  # generic only in pyarrow's stubs
    Unfit = Callable[[str, Array], Sequence[tuple[int, str]]]


_SHOWN = 60  # characters of a value in an error


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """How to read the records of one file. Picklable.

    Attributes:
        number: The number of the file among those read.
        name: The name of the file.
        names: The names of its columns, in its order.
        columns: The same names in the order of the first file.
        delimiter: The delimiter of fields, as a byte.
        null_values: Values that mean null, besides empty fields.
    """

    number: int
    name: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    delimiter: int
    null_values: tuple[str, ...]

    def last_end(self, content: bytes) -> int:
        """Return the end of the last complete record, or 0."""
        regular = quotes_are_regular(content, self.delimiter)
        return end_of_records(content, self.delimiter, regular=regular)

    def rows(self, chunk: Chunk, unfit: Unfit | None = None) -> tuple[pa.Table, list[Refusal]]:
        """Return the rows of a chunk as text, without refused records.

        Args:
            chunk: Complete records.
            unfit: Returns which rows of a column do not fit, and why, given its name and text.
        """
        content, refusals = chunk.content, list[Refusal]()
        table = self._regular(content)
        if table is None:
            judged = [(record, self._reason(record, content)) for record in self._split(content)]
            refusals = [self._refusal(chunk, record, why) for record, why in judged if why]
            content = b"".join(content[r.start : r.stop] for r, why in judged if not why)
            table = self._table(content)
            assert table is not None, "what is left is as it should be"
        if unfit is not None:
            found = [
                (row, f"column {name!r}: {why}")
                for name in self.columns
                for row, why in unfit(name, table.column(name).combine_chunks())
            ]
            if found:
                lines = self._lines(chunk, {refusal.line for refusal in refusals})
                refusals += self._unfit(found, lines)
                table = _without(table, [row for row, _ in found])
        return table, refusals

    def place_of(self, chunk: Chunk, row: int, refused: Iterable[Refusal]) -> tuple[int, bytes]:
        """Return the line of a row that `rows` returned, and its record as written.

        Args:
            chunk: The argument of `rows`.
            row: A row of the table that it returned.
            refused: The records that it refused.
        """
        others = {refusal.line for refusal in refused}
        records = (r for r in self._split(chunk.content) if chunk.line + r.line not in others)
        record = next(islice(records, row, None))
        return chunk.line + record.line, chunk.content[record.start : record.stop]

    def checked_rows(self, content: bytes, types: Mapping[str, pa.DataType]) -> pa.Table:
        """Return the rows of records that `rows` has read without a refusal.

        Args:
            content: The records.
            types: Types by column, for which all values hold; others are text.

        Raises:
            pyarrow.ArrowInvalid: They are others than those which were read.
        """
        table = self._table(content, types)
        if table is None:
            raise pa.ArrowInvalid("a record has too many or too few fields")
        return table

    def _regular(self, content: bytes) -> pa.Table | None:
        """Return the rows of records, or None if something may be wrong with one."""
        if b"\0" in content or not quotes_are_regular(content, self.delimiter, is_whole=True):
            return None
        try:
            return self._table(content)
        except pa.ArrowInvalid:
            return None  # a field that is not UTF-8; quotes, delimiters and ends of lines are

    def _split(self, content: bytes) -> Iterator[Record]:
        for record in split(content, self.delimiter):
            if record.width or len(self.names) == 1:
                yield record

    def _reason(self, record: Record, content: bytes) -> str:
        problem = bytes_problem(content[record.start : record.stop]) or record.why
        width, wanted = max(record.width, 1), len(self.names)
        if problem or width == wanted:
            return problem
        return f"{_fields(width)}, expected {wanted}"

    def _refusal(self, chunk: Chunk, record: Record, why: str) -> Refusal:
        further = max(0, count_lines(chunk.content[record.start : record.stop - 1]))
        if further:
            why = f"{why} (the record ends at line {chunk.line + record.line + further})"
        return Refusal(self.number, chunk.line + record.line, self.name, why)

    def _lines(self, chunk: Chunk, refused: set[int]) -> list[int]:
        """Return the line of each row that was read."""
        lines = [chunk.line + record.line for record in self._split(chunk.content)]
        return [line for line in lines if line not in refused]

    def _unfit(self, found: Iterable[tuple[int, str]], lines: Sequence[int]) -> Iterator[Refusal]:
        first: dict[int, str] = {}
        for row, why in found:
            first.setdefault(row, why)
        for row, why in first.items():
            yield Refusal(self.number, lines[row], self.name, why)

    def _table(
        self, content: bytes, types: Mapping[str, pa.DataType] | None = None
    ) -> pa.Table | None:
        """Return the rows of records, or None if one has too many or too few fields.

        Raises:
            pyarrow.ArrowInvalid: A field is not UTF-8, or not of its type.
        """
        kinds = dict.fromkeys(self.columns, pa.string()) | dict(types or {})
        schema = pa.schema(list(kinds.items()))
        if not content or (len(self.names) > 1 and not content.strip(b"\r\n")):
            return schema.empty_table()
        ragged: list[int] = []

        def note(row: csv.InvalidRow) -> Literal["skip"]:
            ragged.append(row.actual_columns)
            return "skip"

        places = {name: str(at) for at, name in enumerate(self.names)}
        if content.startswith(codecs.BOM_UTF8):
            content = codecs.BOM_UTF8 + content  # Arrow drops one, but this is a value's
        table: pa.Table = csv.read_csv(
            cast("Any", pa.BufferReader(content)),
            read_options=csv.ReadOptions(
                use_threads=False,
                # One block, so that no record is split between two.
                block_size=len(content) + 1,
                column_names=list(places.values()),
            ),
            parse_options=csv.ParseOptions(
                delimiter=chr(self.delimiter),
                newlines_in_values=True,
                # With a single column, an empty line is a null.
                ignore_empty_lines=len(self.names) > 1,
                invalid_row_handler=note,
            ),
            convert_options=csv.ConvertOptions(
                column_types={places[name]: kind for name, kind in kinds.items()},
                null_values=["", *self.null_values],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
        if ragged:
            return None
        return table.select([places[name] for name in self.columns]).rename_columns(
            list(self.columns)
        )


def read_header(
    first: bytes, file: TextFile, *, number: int, delimiter: str, is_chosen: bool
) -> tuple[tuple[str, ...], int]:
    """Return the names in the first record of a file, and the end of that record.

    Args:
        first: The start of the file's text, with the whole first record.
        file: The file.
        number: Its number.
        delimiter: The delimiter of names.
        is_chosen: Whether the user chose the delimiter.

    Raises:
        BadArgumentError: The record has no names, empty names, or a name twice.
    """
    record = next(split(first, ord(delimiter)), None)
    content = first[: record.stop] if record else b""
    problem = "the file is empty" if record is None else bytes_problem(content) or record.why
    names = () if problem else _names(content, delimiter, number=number, file=file)
    problem = problem or _names_problem(names, delimiter, is_chosen=is_chosen)
    if problem:
        raise BadArgumentError(
            f"{file.name}:1: {problem}; expected a line that names the columns, or --no-header",
            field="SRC",
        )
    assert record is not None
    return names, record.stop


def _names(content: bytes, delimiter: str, *, number: int, file: TextFile) -> tuple[str, ...]:
    record = next(split(content, ord(delimiter)))
    places = tuple(map(str, range(max(record.width, 1))))
    reading = RecordFormat(number, file.name, places, places, ord(delimiter), ())
    table, _ = reading.rows(Chunk(content, 0, 1))
    return tuple(table.column(place)[0].as_py() or "" for place in places) if len(table) else ("",)


def _names_problem(names: Sequence[str], delimiter: str, *, is_chosen: bool) -> str:
    if not all(names):
        return f"column {list(names).index('') + 1} of {len(names)} has no name"
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        return f"the header has the column {twice[0]!r} more than once"
    others = [mark for mark in ";\t|" if mark in names[0]]
    if len(names) == 1 and others and not is_chosen:
        return (
            f"the only column is {names[0]!r}, which looks like several; give --delimiter "
            f"{others[0]!r}, or --delimiter {delimiter!r} if it is one"
        )
    return ""


def compare_headers(names: Sequence[str], wanted: Sequence[str], *, file: str, first: str) -> None:
    """Refuse a file with other columns than the first one; their order may differ.

    Raises:
        BadArgumentError: The columns differ; the message names them.
    """
    there, known = set(names), set(wanted)
    missing = [name for name in wanted if name not in there]
    surplus = [name for name in names if name not in known]
    if missing or surplus:
        lacks = f"lacks {', '.join(map(repr, missing))}" if missing else ""
        has = f"also has {', '.join(map(repr, surplus))}" if surplus else ""
        told = " and ".join(filter(None, (lacks, has)))
        raise BadArgumentError(
            f"{file}:1: of the columns of {first}, the header {told}; "
            "convert files of other columns into a dataset of their own",
            field="SRC",
        )


def _fields(width: int) -> str:
    return "has 1 field" if width == 1 else f"has {width} fields"


def _without(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    keep = np.ones(len(table), np.bool_)
    keep[list(rows)] = False
    return table.filter(pa.array(keep))


def declared_unfit(types: Mapping[str, pa.DataType]) -> Unfit | None:
    """Return a function that finds rows that do not fit declared types; None without such types."""
    if not types:
        return None

    def unfit(name: str, column: Array) -> Sequence[tuple[int, str]]:
        kind = types.get(name)
        if kind is None:
            return ()
        return [
            (row, f"{_short(column[row].as_py())} is not a value of type {kind}")
            for row in unfit_rows(column, kind)
        ]

    return unfit


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
