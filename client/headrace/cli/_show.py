"""How numbers read on a terminal."""

from __future__ import annotations

_STEP = 1024


def size(count: int) -> str:
    """Write a number of bytes with three digits and a binary unit."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < _STEP or unit == "TiB":
            break
        value /= _STEP
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"


_LONGEST = 60
"""Characters of one value; a table of ten columns still fits on a wide terminal."""

_IMAGE_MARKS = {
    b"\x89PNG\r\n\x1a\n": "PNG",
    b"\xff\xd8\xff": "JPEG",
    b"GIF8": "GIF",
    b"RIFF": "WebP",
}


def value_text(value: object) -> str:
    """Write one value of a sample in a few words."""
    if isinstance(value, bytes):
        return _bytes_text(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list) and value:
        return _list_text(value)
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"


def _bytes_text(value: bytes) -> str:
    for mark, name in _IMAGE_MARKS.items():
        if value.startswith(mark):
            return f"{name} image, {size(len(value))}"
    shown = value[:8].hex(" ")
    return f"{shown}{'…' if len(value) > 8 else ''} ({len(value)} bytes)"  # noqa: PLR2004 - as shown


def _list_text(value: list[object]) -> str:
    sides: list[int] = []
    inner: object = value
    while isinstance(inner, list) and inner:
        sides.append(len(inner))
        inner = inner[0]
    first = value_text(inner)
    return f"[{first}, …] {' x '.join(map(str, sides))}"
