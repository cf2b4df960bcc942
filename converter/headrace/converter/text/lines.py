"""Lines of text, each of which is a sample."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.converter.text.chunks import Chunk
from headrace.converter.text.records import bytes_problem, end_of_lines, is_text
from headrace.converter.text.refused import Refusal

LINE_COLUMN = "value"
_LINE = re.compile(rb"([^\r\n]*+)(?:\r\n|\r|\n|\Z)")


@dataclass(frozen=True, slots=True)
class Lines:
    """How to read the lines of one file. Picklable.

    Attributes:
        number: The number of the file among those read.
        name: The name of the file.
    """

    number: int
    name: str

    def last_end(self, content: bytes) -> int:
        """Return the end of the last complete line, or 0."""
        return end_of_lines(content)

    def rows(self, chunk: Chunk) -> tuple[pa.Table, list[Refusal]]:
        """Return a chunk's lines without their ends, and refusals of those that are not text."""
        if is_text(chunk.content):
            return _table(chunk.content), []
        good: list[bytes] = []
        refusals: list[Refusal] = []
        for number, line in enumerate(_split(chunk.content)):
            problem = bytes_problem(line)
            if problem:
                refusals.append(Refusal(self.number, chunk.line + number, self.name, problem))
            else:
                good.append(line)
        return pa.table(
            {LINE_COLUMN: pa.array([line.decode() for line in good], pa.string())}
        ), refusals


def _split(content: bytes) -> list[bytes]:
    found = [match[1] for match in _LINE.finditer(content)]
    return found[:-1] if found and not found[-1] else found


def _table(content: bytes) -> pa.Table:
    lines: pa.Array[Any]
    if b"\r" in content:
        lines = pa.array([line.decode() for line in _split(content)], pa.string())
    else:
        whole = pa.array([content.removesuffix(b"\n").decode()], pa.string())
        lines = pc.split_pattern(whole, "\n").flatten()
    return pa.table({LINE_COLUMN: lines})
