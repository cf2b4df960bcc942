"""Make image and sound files for a browser.

The media type depends only on the first bytes, and is one of a few types that cannot run code.
HTML, SVG, PDF and all others are shown as bytes.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.show.image_sides import image_sides
from headrace.cli.show.pictures import media_type, picture, png_of

_SOUNDS: Final = (
    (b"WAVE", 8, "audio/wav"),
    (b"fLaC", 0, "audio/flac"),
    (b"OggS", 0, "audio/ogg"),
    (b"ID3", 0, "audio/mpeg"),
    (b"\xff\xfb", 0, "audio/mpeg"),
    (b"\xff\xf3", 0, "audio/mpeg"),
)
TYPES: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", *(media for _, _, media in _SOUNDS)}
)

MAX_FILE_BYTES: Final = 16 << 20
_MAX_UNCHANGED_BYTES: Final = 1 << 20
_MAX_UNCHANGED_PIXELS: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """A file for a browser.

    Attributes:
        content: Its bytes.
        media: Its media type, one of `TYPES`.
    """

    content: bytes
    media: str


def sound_type(value: bytes) -> str | None:
    """Return the media type of a sound from its first bytes; None for anything else."""
    return next((media for mark, at, media in _SOUNDS if value.startswith(mark, at)), None)


def sound(value: bytes) -> File | str:
    """Return a sound as a file, or a note why that is impossible."""
    media = sound_type(value)
    if media is None:
        return "neither an image nor a sound"
    return _too_large(value) if len(value) > MAX_FILE_BYTES else File(value, media)


def image(value: bytes, side: int) -> File | str:
    """Return an image as a file, or a note why that is impossible.

    A small image is returned unchanged, and others are redrawn. An image whose header says that it
    has too many pixels is decoded neither here nor in the browser.

    Args:
        value: Bytes of a file.
        side: The side of the square into which larger images are fitted, in pixels.
    """
    media, sides = media_type(value), image_sides(value)
    if media is None:
        return "neither an image nor a sound"
    if len(value) > MAX_FILE_BYTES:
        return _too_large(value)
    is_small = len(value) <= _MAX_UNCHANGED_BYTES
    if sides is not None and is_small and math.prod(sides) <= _MAX_UNCHANGED_PIXELS:
        return File(value, media)
    drawn = picture(value, side)
    return drawn if isinstance(drawn, str) else File(png_of(drawn), "image/png")


def raster(pixels: NDArray[np.uint8]) -> File:
    """Return pixels as a file.

    Args:
        pixels: ``(height, width) uint8``, or ``(height, width, channels)`` with 1, 3 or 4 channels.
    """
    from PIL import Image  # noqa: PLC0415 - only where a picture is drawn

    flat = pixels[:, :, 0] if pixels.shape[2:] == (1,) else pixels
    return File(png_of(Image.fromarray(np.ascontiguousarray(flat))), "image/png")


def mask_classes(value: bytes) -> NDArray[np.int64] | str:
    """Return a mask's pixels as classes, ``(height, width) int64``, or a note why not."""
    from PIL import Image  # noqa: PLC0415

    # Checks the format, the number of pixels and whether the file is intact.
    checked = picture(value, 1)
    if isinstance(checked, str):
        return checked
    with Image.open(io.BytesIO(value)) as opened:
        flat = opened if opened.mode in {"L", "P", "I", "I;16", "1"} else opened.convert("L")
        return np.asarray(flat).astype(np.int64)


def coloured(classes: NDArray[Any]) -> File | str:
    """Return a mask as an overlay with a colour per class; class 0 is transparent.

    Args:
        classes: ``(height, width)``, of integers.
    """
    flat = classes[:, :, 0] if classes.shape[2:] == (1,) else classes
    if flat.ndim != 2 or flat.dtype.kind not in "biu":  # noqa: PLR2004 - rows and columns
        return "not a mask: a mask has two dimensions and whole numbers"
    return raster(_palette()[flat.astype(np.int64) % 256])


def _too_large(value: bytes) -> str:
    return f"too large for a page: {len(value):,} bytes; at most {MAX_FILE_BYTES:,} are shown"


def _palette() -> NDArray[np.uint8]:
    """Return 256 distinct colours, ``(256, 4) uint8``, of which the first is transparent."""
    hues = np.arange(256) * 0.618033988749895 % 1
    waves = (np.cos((hues[:, None] + np.array([0, 1 / 3, 2 / 3])) * 2 * np.pi) + 1) / 2
    colours = np.column_stack([waves * 255, np.full(256, 150)]).astype(np.uint8)
    colours[0] = 0
    return colours
