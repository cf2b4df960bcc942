"""Small real images."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

FORMATS = {
    "bmp": "BMP",
    "gif": "GIF",
    "jpg": "JPEG",
    "png": "PNG",
    "tiff": "TIFF",
    "webp": "WEBP",
}
"""What Pillow calls the formats that names tell."""


def image_bytes(suffix: str = "jpg", *, number: int = 0, side: int = 8) -> bytes:
    """Return a whole file; ``number`` tells images apart."""
    content = BytesIO()
    pixels = Image.new("RGB", (side, side), (number % 256, number // 256 % 256, 7))
    pixels.save(content, FORMATS[suffix])
    return content.getvalue()


def noise_bytes(number: int, kind: str = "PNG") -> bytes:
    """Return a whole file of 14 x 12 random pixels; ``number`` tells images apart."""
    content = BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (12, 14, 3), np.uint8)
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def write_images(root: Path, *names: str) -> dict[str, bytes]:
    """Write an image of its own under each name, of the format that the name tells."""
    written = {}
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        written[name] = image_bytes(name.rsplit(".", 1)[-1].lower(), number=number)
        path.write_bytes(written[name])
    return written
