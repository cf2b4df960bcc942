"""Check whether a file is a complete image, without decoding it.

This finds what copies and downloads do to files: an empty file, an HTML page instead of an image, a
missing end (for TIFF only a missing directory), and in PNG any flipped bit. A JPEG with a damaged
middle passes.

*Sources:* ITU-T T.81 (JPEG) annex B; the PNG specification, chapter 5; GIF89a; RFC 9649 (WebP);
TIFF 6.0, section 2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Literal

_PNG_START = b"\x89PNG\r\n\x1a\n"
_PNG_CHUNK_BYTES = 12  # length, type and checksum of a chunk besides its content
_GIF_HEAD_BYTES = 13
_BMP_HEAD_BYTES = 26  # of the smallest kind
_TIFF_ENTRY_BYTES = 12
_JPEG_END = b"\xff\xd9"
_JPEG_SCAN = 0xDA
_JPEG_BARE = frozenset((0x01, *range(0xD0, 0xD8)))  # markers without a length


def problem_of(content: bytes) -> str | None:
    """Return why a file's content is not a complete image, or None."""
    for starts, check in _CHECKS:
        if content.startswith(starts):
            return check(content)
    return f"it starts with {content[:8]!r}, as no image does" if content else "it is empty"


def _jpeg_problem(content: bytes) -> str | None:
    at = 2
    while at + 4 <= len(content) and content[at] == 0xFF:  # noqa: PLR2004 - the mark of a marker
        kind = content[at + 1]
        if kind == _JPEG_SCAN:
            has_end = content.find(_JPEG_END, at) >= 0
            return None if has_end else "its end is missing"
        if kind == 0xFF or kind in _JPEG_BARE:  # noqa: PLR2004 - fill bytes may come before a marker
            at += 1 if kind == 0xFF else 2  # noqa: PLR2004
            continue
        at += 2 + int.from_bytes(content[at + 2 : at + 4], "big")
    return "it has no image after its header"


def _png_problem(content: bytes) -> str | None:
    at = len(_PNG_START)
    view = memoryview(content)
    while at + _PNG_CHUNK_BYTES <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + _PNG_CHUNK_BYTES + length
        if end > len(content):
            break
        if zlib.crc32(view[at + 4 : end - 4]) != int.from_bytes(view[end - 4 : end], "big"):
            return f"its chunk at byte {at} does not match its checksum"
        if kind == b"IEND":
            return None
        at = end
    return "its end is missing"


def _gif_problem(content: bytes) -> str | None:
    at = _GIF_HEAD_BYTES + _gif_table_bytes(content, 10)
    while at < len(content):
        kind = content[at : at + 1]
        if kind == b";":
            return None
        if kind in {b"!", b","}:
            at += 2 if kind == b"!" else 11 + _gif_table_bytes(content, at + 9)
            while at < len(content) and content[at]:
                at += 1 + content[at]
        # Decoders skip other bytes.
        at += 1
    return "its end is missing"


def _gif_table_bytes(content: bytes, at: int) -> int:
    """Return the size of the table of colours of which the byte at ``at`` tells."""
    flags = int.from_bytes(content[at : at + 1], "big")
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _webp_problem(content: bytes) -> str | None:
    if content[8:12] != b"WEBP":
        return "it is a RIFF file, but not a WebP"
    return _too_short(content, 8 + int.from_bytes(content[4:8], "little"))


def _bmp_problem(content: bytes) -> str | None:
    return _too_short(content, max(_BMP_HEAD_BYTES, int.from_bytes(content[2:6], "little")))


def _tiff_problem(content: bytes) -> str | None:
    order: Literal["little", "big"] = "little" if content.startswith(b"II") else "big"
    directory = int.from_bytes(content[4:8], order)
    entries = int.from_bytes(content[directory : directory + 2], order)
    return _too_short(content, directory + 2 + _TIFF_ENTRY_BYTES * max(1, entries))


def _too_short(content: bytes, stated: int) -> str | None:
    missing = stated - len(content)
    return None if missing <= 0 else f"{missing:,} of its {stated:,} bytes are missing"


_CHECKS: tuple[tuple[bytes, Callable[[bytes], str | None]], ...] = (
    (b"\xff\xd8\xff", _jpeg_problem),
    (_PNG_START, _png_problem),
    (b"GIF87a", _gif_problem),
    (b"GIF89a", _gif_problem),
    (b"RIFF", _webp_problem),
    (b"BM", _bmp_problem),
    (b"II*\0", _tiff_problem),
    (b"MM\0*", _tiff_problem),
)
