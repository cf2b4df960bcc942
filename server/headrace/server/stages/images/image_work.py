"""Estimate the work of decoding an image from the header of its file.

The unit is a pixel of one scan. A progressive JPEG has several scans, and each covers all of its
pixels; hostile files have thousands of scans of a few bytes. A processor decodes about 70 million
pixels of a PNG per second.
"""

from __future__ import annotations

import numpy as np

from headrace.server.kernels.loader import LOOPS

# Decoded, such an image takes 256 MiB; larger ones are an attack or a mistake.
_PIXEL_LIMIT = 1 << 26
# 16 scans of the largest image; cameras and common programs write ten.
_SCANNED_LIMIT = 1 << 30
# What a processor decodes in a minute: 4,096 PNGs of one megapixel.
_BATCH_LIMIT = 1 << 32


def decode_work(width: int, height: int, content: memoryview) -> int:
    """Return how many pixels decoding a file visits, counting each scan.

    Args:
        width: The width of the image according to its header, in pixels.
        height: Its height, in pixels.
        content: The file.

    Raises:
        ValueError: There are too many pixels for one image.
    """
    pixels = width * height
    if pixels > _PIXEL_LIMIT:
        raise ValueError(f"it has {width} x {height} pixels; at most {_PIXEL_LIMIT} are allowed")
    scans = max(1, scan_count(content)) if bytes(content[:2]) == b"\xff\xd8" else 1
    if pixels * scans > _SCANNED_LIMIT:
        raise ValueError(
            f"it has {scans} scans of {width} x {height} pixels; at most {_SCANNED_LIMIT} pixels "
            "in all scans are allowed"
        )
    return pixels * scans


def scan_count(content: memoryview) -> int:
    """Return how many scans a JPEG has, counting metadata that looks like one.

    That is rare, since a zero follows each 0xff in compressed bytes.

    Args:
        content: The file.
    """
    return int(LOOPS.count_scans(np.frombuffer(content, np.uint8)))


def check_work(pixels: int) -> None:
    """Refuse a batch with too many pixels.

    Raises:
        ValueError: There are too many pixels.
    """
    if pixels > _BATCH_LIMIT:
        raise ValueError(
            f"the images of the batch up to this one have {pixels} pixels; at most {_BATCH_LIMIT} "
            "are allowed. Use smaller batches or images"
        )
