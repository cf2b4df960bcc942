"""Where records of CSV end, by RFC 4180: quickly where all is well, and record by record if not.

A quote opens a field only at its start, and is closed by one before a delimiter or the end of a
line; two within are one. So the number of quotes before a place says whether it is quoted, once
every quote stands where it may. Where one does not, records are split as Python's csv splits them,
and refused.
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
    """One record of CSV in some bytes.

    Attributes:
        start: First byte.
        stop: Last byte and one, with the end of its line.
        line: The line that it starts on, counted from 0.
        width: Fields; 0 for an empty line.
        why: What is wrong with its quotes; empty where nothing is.
        is_whole: Whether its end has been seen, not just that of the bytes.
    """

    start: int
    stop: int
    line: int
    width: int
    why: str
    is_whole: bool


def quotes_are_regular(content: bytes, delimiter: int) -> bool:
    """Tell whether every quote of whole records stands where RFC 4180 allows one.

    Args:
        content: Records, from the start of one; the last may be broken off.
        delimiter: Between fields, as a byte.
    """
    if b'"' not in content:
        return True
    data = np.frombuffer(content, np.uint8)
    quotes = np.flatnonzero(data == _QUOTE)
    allowed = np.zeros(256, np.bool_)
    allowed[[*_ENDS, delimiter]] = True
    opening, closing = quotes[::2], quotes[1::2]
    after = np.append(data, np.uint8(_ENDS[0]))[closing + 1]
    before = data[np.maximum(opening - 1, 0)]
    # An opening quote just behind a closing one is the second of two, and both are one.
    pairs = np.zeros(len(opening), np.bool_)
    pairs[1:] = opening[1:] - closing[: len(opening) - 1] == 1
    doubled = np.zeros(len(closing), np.bool_)
    doubled[: len(opening) - 1] = pairs[1:]
    starts = allowed[before] | (opening == 0) | pairs
    return bool(starts.all() and (allowed[after] | doubled).all())


def end_of_records(content: bytes, delimiter: int, *, regular: bool) -> int:
    """Return where the last whole record ends, or 0 where none does.

    Args:
        content: A part of a file that is not its end.
        delimiter: The byte between two fields.
        regular: What `quotes_are_regular` says of the content.
    """
    if not regular:
        whole = [record.stop for record in split(content, delimiter) if record.is_whole]
        return whole[-1] if whole else 0
    stop = len(content)
    count = content.count(b'"')
    while True:
        # What lies between the last quote before `stop` and `stop` is quoted if count is odd.
        start = content.rfind(b'"', 0, stop) + 1
        if count % 2 == 0:
            end = end_of_lines(content, start, stop)
            if end:
                return end
        if not start:
            return 0
        stop, count = start - 1, count - 1


def end_of_lines(content: bytes, start: int = 0, stop: int | None = None) -> int:
    """Return where the last whole line ends that ends in a part of some bytes, or 0."""
    last = len(content) if stop is None else stop
    feed = content.rfind(b"\n", start, last)
    # A feed may follow a carriage return at the very end.
    carriage = content.rfind(b"\r", start, min(last, len(content) - 1))
    if carriage + 1 == feed:
        carriage = -1
    return max(feed, carriage) + 1


def count_lines(content: bytes) -> int:
    """Return how many lines end in some bytes, whatever ends them."""
    returns = content.count(b"\r")
    return content.count(b"\n") + (returns - content.count(b"\r\n") if returns else 0)


def split(content: bytes, delimiter: int) -> Iterator[Record]:
    """Yield the records of some bytes, where they end as Python's csv module ends them."""
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
    """Return why some bytes are not text; empty where they are."""
    if b"\0" in content:
        return "contains a NUL byte, as binary files and UTF-16 do; check --encoding"
    found = undecodable(content)
    if found is not None:
        return f"contains the byte {found}, which is invalid in the encoding; check --encoding"
    return ""


def is_text(content: bytes) -> bool:
    """Tell whether some bytes are UTF-8 without a NUL; copies nothing."""
    if b"\0" in content:
        return False
    offsets = pa.array([0, len(content)], pa.int64()).buffers()[1]
    whole = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(content)])
    try:
        whole.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True
