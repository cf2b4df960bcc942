"""Records of JSON: one object a line, several on a line, over several lines, or in one array."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.converter.text.chunks import MAX_RECORD_BYTES, chunks_of
from headrace.converter.text.files import TextFile
from headrace.converter.text.json_kinds import constant
from headrace.converter.text.records import bytes_problem
from headrace.converter.text.refused import Refusal
from headrace.errors import BadArgumentError

Layout = Literal["lines", "values", "array"]

_SPACE = re.compile(r"[ \t\r\n]*")
_ROWS_BYTES = 1 << 20  # of text in one batch
_HEAD_BYTES = 1 << 20


class _DuplicateError(ValueError):
    """An object has a name twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _DuplicateError(f"an object has the name {twice!r} more than once")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=constant)
_LENIENT = json.JSONDecoder()  # finds the end of an object that has a name twice


@dataclass(frozen=True, slots=True)
class JsonRows:
    """Consecutive records of one file.

    Attributes:
        values: The records as Python's json module reads them; all are objects.
        lines: The line on which each record starts.
        refusals: Values that are not objects, or not valid.
        content: The text that was read for them. Together these texts are the text of the file.
        next_line: The line on which the following text starts.
    """

    values: Sequence[Mapping[str, Any]]
    lines: Sequence[int]
    refusals: Sequence[Refusal]
    content: bytes
    next_line: int


@dataclass(frozen=True, slots=True)
class JsonFile:
    """How to read the records of one file. Picklable.

    Attributes:
        number: The number of the file among those read.
        file: The file.
        layout: How its records are laid out.
    """

    number: int
    file: TextFile
    layout: Layout

    def rows(self, start: int = 0, stop: int | None = None, line: int = 1) -> Iterator[JsonRows]:
        """Yield the records of a part of the file; only files of lines have several parts.

        Args:
            start: Where the part starts in the file's text, in bytes.
            stop: Where it ends; `None` is the end of the text.
            line: The line on which it starts, counted from 1.

        Raises:
            BadArgumentError: A record is not valid, and its end cannot be found.
        """
        parts = self.file.read(start, stop)
        if self.layout == "lines":
            yield from self._lines(parts, start, line)
        else:
            yield from self._values(parts)

    def _lines(self, parts: Iterator[bytes], start: int, line: int) -> Iterator[JsonRows]:
        small = (
            part[at : at + _ROWS_BYTES] for part in parts for at in range(0, len(part), _ROWS_BYTES)
        )
        chunks = chunks_of(
            small, lambda held: held.rfind(b"\n") + 1, name=self.file.name, start=start, line=line
        )
        for chunk in chunks:
            found = _RowCollector(self, chunk.line)
            number = chunk.line
            for content in chunk.content.split(b"\n"):
                found.line = number
                self._line(content, found)
                number += 1
            # The last line ends with the chunk, or the file.
            yield found.rows(chunk.content, chunk.line + chunk.content.count(b"\n"))

    def _line(self, content: bytes, found: _RowCollector) -> None:
        if not content.strip():
            return
        problem = bytes_problem(content)
        if problem:
            found.refuse(problem)
            return
        text = content.decode()
        values: list[Any] = []
        at = _end(_SPACE, text, 0)
        try:
            while at < len(text):
                value, at = _DECODER.raw_decode(text, at)
                values.append(value)
                at = _end(_SPACE, text, at)
        except (ValueError, RecursionError) as error:
            found.refuse(_reason(error))
            return
        for value in values:
            found.take(value)

    def _values(self, parts: Iterator[bytes]) -> Iterator[JsonRows]:
        text = _Text(parts, self.file.name)
        found = _RowCollector(self, 1)
        in_array = self.layout == "array"
        if in_array:
            text.expect("[")
        first, taken = True, 0
        while not text.at_end(_SPACE):
            if in_array and text.starts("]"):
                break
            if in_array and not first:
                text.expect(",")
            first = False
            found.line = text.line
            taken += text.decode(found)
            if taken > _ROWS_BYTES:
                yield found.rows(text.taken(), text.line)
                found, taken = _RowCollector(self, text.line), 0
        if in_array:
            text.expect("]")
            if not text.at_end(_SPACE):
                raise text.failed("something follows the array; expected the end of the file")
        yield found.rows(text.taken(), text.line)


class _RowCollector:
    """Collects records for `JsonRows`."""

    def __init__(self, source: JsonFile, line: int) -> None:
        self.line = line
        self._source = source
        self._values: list[Mapping[str, Any]] = []
        self._lines: list[int] = []
        self._refusals: list[Refusal] = []

    def take(self, value: object) -> None:
        if isinstance(value, dict):
            self._values.append(value)
            self._lines.append(self.line)
        else:
            kind = type(value).__name__
            self.refuse(f"the record is not a JSON object but {_KINDS.get(kind, kind)}")

    def refuse(self, why: str) -> None:
        self._refusals.append(Refusal(self._source.number, self.line, self._source.file.name, why))

    def rows(self, content: bytes, next_line: int) -> JsonRows:
        return JsonRows(self._values, self._lines, self._refusals, content, next_line)


_KINDS = {
    "list": "an array",
    "str": "a string",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "NoneType": "null",
}


class _Text:
    """The text of a file, read as far as needed, and a position in it."""

    def __init__(self, parts: Iterator[bytes], name: str) -> None:
        self.at = 0
        self.line = 1
        self._held = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._parts = parts
        self._name = name
        self._is_whole = False
        self._taken: list[bytes] = []

    def taken(self) -> bytes:
        """Return the text that was read since the last call."""
        taken, self._taken = b"".join(self._taken), []
        return taken

    def more(self) -> bool:
        """Read as much text as is held already, and return whether there was any."""
        self._held, self.at = self._held[self.at :], 0
        wanted = max(1, len(self._held))
        gained = 0
        while gained < wanted and not self._is_whole:
            part = next(self._parts, None)
            self._is_whole = part is None
            self._taken.append(part or b"")
            text = self._decoder.decode(part or b"", self._is_whole)
            self._held += text
            gained += len(text)
        if len(self._held) > MAX_RECORD_BYTES:
            raise self.failed(f"a record has more than {MAX_RECORD_BYTES >> 20} MiB")
        return gained > 0

    def skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            self._advance(_end(pattern, self._held, self.at))
            if self.at < len(self._held) or not self.more():
                return

    def at_end(self, pattern: re.Pattern[str]) -> bool:
        self.skip(pattern)
        return self.at == len(self._held)

    def starts(self, mark: str) -> bool:
        return self._held.startswith(mark, self.at)

    def expect(self, mark: str) -> None:
        self.skip(_SPACE)
        if not self.starts(mark):
            shown = self._held[self.at : self.at + 20]
            raise self.failed(f"found {shown!r}, expected {mark!r}")
        self._advance(self.at + 1)
        self.skip(_SPACE)

    def decode(self, found: _RowCollector) -> int:
        """Read one value, pass it on, and return its length."""
        found.line = self.line
        while True:
            try:
                value, end = _DECODER.raw_decode(self._held, self.at)
            except _DuplicateError as error:
                stop = self._end_of_value()
                if stop is None:
                    continue
                found.refuse(str(error))
                return self._advance(stop)
            except (ValueError, RecursionError) as error:
                self._read_more(error)
                continue
            # A number may continue in text that is not read yet.
            if end == len(self._held) and self.more():
                continue
            text = self._held[self.at : end]
            problem = "" if text.isascii() else bytes_problem(text.encode(errors="surrogateescape"))
            if problem:
                found.refuse(problem)
            else:
                found.take(value)
            return self._advance(end)

    def _end_of_value(self) -> int | None:
        """Return where an object ends that has a name twice; None if more was read for it."""
        try:
            return _LENIENT.raw_decode(self._held, self.at)[1]
        except (ValueError, RecursionError) as error:
            self._read_more(error)
            return None

    def _read_more(self, error: ValueError | RecursionError) -> None:
        """Read more of a value that ends too early; fail if there is no more, or it is broken."""
        may_continue = isinstance(error, json.JSONDecodeError) and not self._is_whole
        if not (may_continue and self.more()):
            raise self.failed(_reason(error)) from error

    def failed(self, why: str) -> BadArgumentError:
        """Return an error that ``on_error`` cannot skip: the next record's start is not known."""
        return BadArgumentError(
            f"{self._name}:{self.line}: {why}. Nothing was written: correct the file; in files "
            "without one object per line, records after a broken one cannot be found",
            field="SRC",
        )

    def _advance(self, end: int) -> int:
        self.line += self._held.count("\n", self.at, end)
        length, self.at = end - self.at, end
        return length


def layout_of(file: TextFile) -> Layout:
    """Return how the records of a file are laid out, judging by its first line."""
    head = b""
    for part in file.read():
        head += part
        if len(head) >= _HEAD_BYTES:
            break
    text = head.lstrip()
    if text.startswith(b"["):
        return "array"
    first = text.split(b"\n", 1)[0].rstrip()
    # The first line of an object over several lines does not close it.
    return "values" if text.startswith(b"{") and not first.endswith(b"}") else "lines"


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


def _reason(error: ValueError | RecursionError) -> str:
    if isinstance(error, RecursionError):
        return "objects or arrays are nested too deep"
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON: {error.msg} at character {error.colno}"
    return str(error)
