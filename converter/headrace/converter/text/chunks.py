"""Cut the text of a file at the ends of records, into chunks of limited size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.converter.text.records import count_lines
from headrace.errors import BadArgumentError

MAX_RECORD_BYTES = 64 << 20
"""Most bytes of one record; beyond it, a quote or bracket was most likely never closed."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Complete records of one file.

    Attributes:
        content: The text: UTF-8, unless it is invalid.
        start: Where it starts in the file's text, in bytes.
        line: The line on which it starts, counted from 1.
    """

    content: bytes
    start: int
    line: int

    @property
    def stop(self) -> int:
        """Return the start of the next chunk."""
        return self.start + len(self.content)


def known_chunks(parts: Iterable[bytes], ends: Iterable[int], start: int) -> Iterator[bytes]:
    """Yield the text of a file cut at known places; what is left after them comes last.

    Args:
        parts: The text.
        ends: Where chunks end in the file's text, in bytes.
        start: Where the first part starts.
    """
    held = b""
    left = iter(ends)
    end = next(left, None)
    for part in parts:
        held += part
        while end is not None and end - start <= len(held):
            yield held[: end - start]
            held, start, end = held[end - start :], end, next(left, None)
    if held:
        yield held


def chunks_of(
    parts: Iterable[bytes],
    last_end: Callable[[bytes], int],
    *,
    name: str,
    start: int = 0,
    line: int = 1,
) -> Iterator[Chunk]:
    """Yield the text of a file as complete records.

    Args:
        parts: The text.
        last_end: Returns the end of the last complete record in a text, or 0.
        name: The name of the file, for the error.
        start: Where the first part starts in the file's text.
        line: The line of the first part.

    Raises:
        BadArgumentError: A record has more than 64 MiB.
    """
    held = b""
    for part in parts:
        held += part
        end = last_end(held)
        if end:
            yield Chunk(held[:end], start, line)
            start, line = start + end, line + count_lines(held[:end])
            held = held[end:]
        if len(held) > MAX_RECORD_BYTES:
            raise BadArgumentError(
                f"{name}:{line}: a record has more than {MAX_RECORD_BYTES >> 20} MiB; most likely "
                "a quote is opened and never closed",
                field="SRC",
            )
    if held:
        yield Chunk(held, start, line)
