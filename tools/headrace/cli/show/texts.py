"""Format numbers, samples and images as text for a terminal."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from headrace.cli.show.image_sides import image_format, image_sides

if TYPE_CHECKING:
    import pyarrow as pa

_STEP = 1024


def size(count: int) -> str:
    """Format a number of bytes with at least three digits and a binary unit."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < _STEP or unit == "TiB":
            break
        value /= _STEP
    digits = max(3, len(f"{value:.0f}"))
    return f"{value:.{digits}g} {unit}"


def counted(count: int, noun: str) -> str:
    """Format a count of something whose plural ends in s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def column_forms(schema: pa.Schema) -> dict[str, str]:
    """Return the formats of columns that their types do not tell, such as ``bfloat16``."""
    notes = {field.name: (field.metadata or {}).get(b"headrace.format") for field in schema}
    return {name: note.decode() for name, note in notes.items() if note}


_MAX_CHARACTERS = 60
"""Characters of one value; a table of ten columns still fits on a wide terminal."""

_MAX_HEX = 8
"""Bytes of a value to show as hexadecimal digits."""


def value_text(value: object, form: str = "") -> str:
    """Format one value of a sample as a short text.

    Args:
        value: The value as a Python object from Arrow.
        form: The column's `headrace.format`, or an empty text.
    """
    if value is None:
        return "null"
    if form == "bfloat16":
        value = _from_bfloat16(value)
    if isinstance(value, bytes):
        return _bytes_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and value:
        return _list_text(value)
    text = str(value) if value != "" else '""'
    if len(text) <= _MAX_CHARACTERS:
        return printable(text)
    return f"{printable(text[:_MAX_CHARACTERS])}… ({len(text)} characters)"


def printable(text: str) -> str:
    """Escape control characters as Python does."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _bytes_text(value: bytes) -> str:
    name = image_format(value)
    if name is not None:
        sides = " x ".join(map(str, image_sides(value) or ())) or "image"
        return f"{name} {sides}, {size(len(value))}"
    shown = value[:_MAX_HEX].hex(" ")
    return f"{shown}{'…' if len(value) > _MAX_HEX else ''} ({len(value)} bytes)".lstrip()


def _from_bfloat16(value: object) -> object:
    """Return the number of a bfloat16's bits; for a list of bits, a list of numbers."""
    if isinstance(value, list):
        return [_from_bfloat16(item) for item in value]
    if not isinstance(value, int):
        return value
    number: float = struct.unpack("<f", struct.pack("<I", value << 16))[0]
    return number


def _list_text(value: list[object]) -> str:
    sides: list[int] = []
    inner: object = value
    while isinstance(inner, list) and inner:
        sides.append(len(inner))
        inner = inner[0]
    first = value_text(inner)
    return f"[{first}, …] {' x '.join(map(str, sides))}"
