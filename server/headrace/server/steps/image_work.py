"""How much work it is to decode an image, told by the head of its file before it is done.

The unit is a pixel of one scan. A progressive JPEG has several scans, and each goes over all of
its pixels; hostile ones have thousands of scans of some bytes. A processor decodes some 70 million
pixels of a PNG a second.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.loader import LOOPS

# Decoded it takes 256 MiB; larger ones are an attack or a mistake.
_PIXEL_LIMIT = 1 << 26
# 16 scans of the largest image; cameras and the usual programs make ten.
_SCANNED_LIMIT = 1 << 30
# What a processor decodes in a minute: 4,096 PNG of a megapixel.
_BATCH_LIMIT = 1 << 32

_SCAN = b"\xff\xda"
_PIECE_BYTES = 1 << 18


def decode_work(width: int, height: int, content: memoryview) -> int:
    """Return the pixels that decoding a file goes over, those of each scan counted.

    Args:
        width: The width of the image, as its head says.
        height: The height of the image.
        content: The file.

    Raises:
        ValueError: They are too many for one image.
    """
    pixels = width * height
    if pixels > _PIXEL_LIMIT:
        raise ValueError(f"it has {width} x {height} pixels, {_PIXEL_LIMIT} is the most")
    scans = max(1, scan_count(content)) if bytes(content[:2]) == b"\xff\xd8" else 1
    if pixels * scans > _SCANNED_LIMIT:
        raise ValueError(
            f"it has {scans} scans of {width} x {height} pixels, {_SCANNED_LIMIT} pixels of all "
            "scans is the most"
        )
    return pixels * scans


def scan_count(content: memoryview) -> int:
    """Return how many scans a JPEG has, metadata that looks like one counted.

    In compressed bytes a zero follows each 0xff, so that is rare.

    Args:
        content: The file.
    """
    found = np.frombuffer(content, np.uint8)
    if LOOPS is not None:
        count: int = LOOPS.count_scans(found)
        return count
    return scan_count_plainly(found)


def scan_count_plainly(found: NDArray[np.uint8]) -> int:
    """Do the same without the compiled loop."""
    # In pieces, so that what is between needs little memory.
    return sum(
        _pairs(found[begin : begin + _PIECE_BYTES + 1])
        for begin in range(0, found.size, _PIECE_BYTES)
    )


def _pairs(piece: NDArray[np.uint8]) -> int:
    # The second byte is the rarer one; 0xff fills up before markers.
    places = np.flatnonzero(piece[1:] == _SCAN[1])
    return int(np.count_nonzero(piece[places] == _SCAN[0]))


def check_work(pixels: int) -> None:
    """Refuse a batch with too many pixels.

    Raises:
        ValueError: They are too many.
    """
    if pixels > _BATCH_LIMIT:
        raise ValueError(
            f"the images of the batch up to it have {pixels} pixels, {_BATCH_LIMIT} is the most; "
            "use smaller batches or images"
        )
