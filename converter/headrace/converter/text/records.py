"""Find the ends of CSV records by RFC 4180: fast if quotes are regular, else record by record.

A quote opens a field only at its start, and closes it only before a delimiter or the end of a line;
two quotes within a field stand for one. If all quotes are where they may be, the number of quotes
before a place says whether it is quoted. Otherwise records are split as Python's csv module splits
them, and refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from headrace.converter.text.files import undecodable

_QUOTE = 0x22
_ENDS = (0x0A, 0x0D)


@dataclass(frozen=True, slots=True)
class Record:
    """One CSV record in a sequence of bytes.

    Attributes:
        start: Index of its first byte.
        stop: Index after its last byte, line end included.
        line: The line on which it starts, counted from 0.
        width: Number of fields; 0 for an empty line.
        why: What is wrong with its quotes; empty if nothing is.
        is_whole: Whether it ends here, and not just where the bytes end.
    """

    start: int
    stop: int
    line: int
    width: int
    why: str
    is_whole: bool


def quotes_are_regular(content: bytes, delimiter: int, *, is_whole: bool = False) -> bool:
    """Return whether all quotes are where RFC 4180 allows them.

    Args:
        content: Records, from the start of one.
        delimiter: The delimiter of fields, as a byte.
        is_whole: Whether the last record is complete; it may be incomplete otherwise.
    """
    if b'"' not in content:
        return True
    data = np.frombuffer(content, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    if is_whole and len(quotes) % 2:
        return False
    allowed = np.zeros(256, np.bool_)
    allowed[[*_ENDS, delimiter]] = True
    opening, closing = quotes[::2], quotes[1::2]
    after = np.append(data, np.uint8(_ENDS[0]))[closing + 1]
    before = data[np.maximum(opening - 1, 0)]
    # An opening quote right after a closing one makes a pair, which stands for one quote.
    pairs = np.zeros(len(opening), np.bool_)
    pairs[1:] = opening[1:] - closing[: len(opening) - 1] == 1
    doubled = np.zeros(len(closing), np.bool_)
    doubled[: len(opening) - 1] = pairs[1:]
    starts = allowed[before] | (opening == 0) | pairs
    return bool(starts.all() and (allowed[after] | doubled).all())


def end_of_records(content: bytes, delimiter: int, *, regular: bool) -> int:
    """Return the end of the last complete record, or 0.

    Args:
        content: A part of a file, other than its end.
        delimiter: The delimiter of fields, as a byte.
        regular: What `quotes_are_regular` returns for the content.
    """
    if not regular:
        whole = [record.stop for record in split(content, delimiter) if record.is_whole]
        return whole[-1] if whole else 0
    stop = len(content)
    count = content.count(b'"')
    while True:
        # Bytes between the last quote before `stop` and `stop` are quoted if the count is odd.
        start = content.rfind(b'"', 0, stop) + 1
        if count % 2 == 0:
            end = end_of_lines(content, start, stop)
            if end:
                return end
        if not start:
            return 0
        stop, count = start - 1, count - 1


def end_of_lines(content: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return the end of the last line that ends in [start, stop), or 0."""
    last = len(content) if stop is None else stop
    feed = content.rfind(b"\n", start, last)
    # A line feed may still follow a carriage return at the very end.
    carriage = content.rfind(b"\r", start, min(last, len(content) - 1))
    if carriage + 1 == feed:
        carriage = -1
    return max(feed, carriage) + 1


def count_lines(content: bytes) -> int:
    """Return how many lines end in the bytes, with any kind of line end."""
    returns = content.count(b"\r")
    return content.count(b"\n") + (returns - content.count(b"\r\n") if returns else 0)


def split(content: bytes, delimiter: int) -> Iterator[Record]:
    """Yield the records in the bytes, split as Python's csv module splits them."""
    pattern = _field_pattern(delimiter)
    at = start = line = width = 0
    why = ""
    while at < len(content):
        field = pattern.match(content, at)
        assert field is not None
        width += 1
        why = why or _problem(field)
        at = field.end()
        end = field["end"]
        if end and end[0] == delimiter:
            if at == len(content):
                yield Record(start, at, line, width + 1, why, is_whole=False)
            continue
        empty = at - start == len(end)
        yield Record(start, at, line, 0 if empty else width, why, is_whole=_is_whole(field))
        line += count_lines(content[start:at])
        start, width, why = at, 0, ""


def _is_whole(field: re.Match[bytes]) -> bool:
    at_end = field.end() == len(field.string)
    return bool(field["end"]) and not (field["end"] == b"\r" and at_end)


def _problem(field: re.Match[bytes]) -> str:
    if field["open"] is not None and field["close"] is None:
        return "a quote is opened and never closed"
    if field["junk"]:
        shown = field["junk"][:20].decode(errors="replace")
        return (
            f"{shown!r} follows a closing quote, expected a delimiter or the end of the line; a "
            "quote inside a quoted field is written twice"
        )
    if field["bare"] is not None and b'"' in field["bare"]:
        return "a quote stands inside a field that is not quoted; quote the field and double it"
    return ""


@lru_cache(maxsize=16)
def _field_pattern(delimiter: int) -> re.Pattern[bytes]:
    stop = rb"[^" + re.escape(bytes([delimiter])) + rb"\r\n]*+"
    quoted = rb'(?P<open>")(?:[^"]++|"")*+(?:(?P<close>")(?P<junk>' + stop + rb"))?"
    end = rb"(?P<end>" + re.escape(bytes([delimiter])) + rb"|\r\n|\r|\n|\Z)"
    return re.compile(rb"(?:" + quoted + rb"|(?P<bare>" + stop + rb"))" + end)


def bytes_problem(content: bytes) -> str:
    """Return why the bytes are not text; empty if they are."""
    if b"\0" in content:
        return "contains a NUL byte, as binary files and UTF-16 do; check --encoding"
    found = undecodable(content)
    if found is not None:
        return f"contains the byte {found}, which is invalid in the encoding; check --encoding"
    return ""


def is_text(content: bytes) -> bool:
    """Return whether the bytes are UTF-8 without NUL; copies nothing."""
    if b"\0" in content:
        return False
    offsets = pa.array([0, len(content)], pa.int64()).buffers()[1]
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(content)])
    try:
        whole.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
