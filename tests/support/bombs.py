"""Small files of images that take much work to decode, or say so."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image


def claimed_png(width: int, height: int) -> bytes:
    """Return a PNG that ends after its head."""
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    ends = struct.pack(">I", zlib.crc32(head)) + struct.pack(">I", 100) + b"IDAT"
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + ends


def scanned_jpeg(side: int, scans: int) -> bytes:
    """Return a progressive JPEG whose first scan comes so many times more."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(file, "JPEG", progressive=True)
    content = file.getvalue()
    first = content.index(b"\xff\xda")
    second = content.index(b"\xff\xda", first + 2)
    return content[:second] + content[first:second] * scans + content[second:]
