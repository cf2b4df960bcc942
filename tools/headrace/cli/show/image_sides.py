"""Tell the format, width and height of encoded images from their first bytes."""

from __future__ import annotations

import struct

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8"
_FORMATS = (
    (_PNG, 0, "PNG"),
    (b"\xff\xd8\xff", 0, "JPEG"),
    (b"GIF8", 0, "GIF"),
    (b"WEBP", 8, "WebP"),
)
_STANDALONE = {0x01, *range(0xD0, 0xD9)}
# Frames start with these markers; those in between are tables.
_FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_format(content: bytes) -> str | None:
    """Return ``PNG``, ``JPEG``, ``GIF`` or ``WebP``; None for anything else."""
    return next((name for mark, at, name in _FORMATS if content.startswith(mark, at)), None)


def image_sides(content: bytes) -> tuple[int, int] | None:
    """Return the width and height of a PNG, GIF or JPEG file, or None if unknown.

    Source: the PNG specification (IHDR), GIF89a (logical screen), ITU T.81 annex B (JPEG).
    """
    try:
        if content.startswith(_PNG):
            return _pair(">II", content, 16)
        if content.startswith(b"GIF8"):
            return _pair("<HH", content, 6)
        if content.startswith(_JPEG):
            return _jpeg_sides(content)
    except struct.error:  # the file is truncated
        pass
    return None


def _pair(form: str, content: bytes, place: int) -> tuple[int, int]:
    width, height = struct.unpack_from(form, content, place)
    return width, height


def _jpeg_sides(content: bytes) -> tuple[int, int] | None:
    place = len(_JPEG)
    while place < len(content):
        mark, kind = struct.unpack_from("BB", content, place)
        if mark != 0xFF:  # noqa: PLR2004 - the first byte of every marker
            return None
        if kind == 0xFF:  # noqa: PLR2004 - a fill byte before a marker
            place += 1
        elif kind in _FRAMES:
            height, width = _pair(">HH", content, place + 5)
            return width, height
        elif kind in _STANDALONE:
            place += 2
        else:
            place += 2 + int(struct.unpack_from(">H", content, place + 2)[0])
    return None
