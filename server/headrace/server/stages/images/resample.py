"""Scale a part of an image with antialiasing, in exact integer arithmetic.

docs/augmentation.md specifies it. Columns of pixels are weighted first and then rows, with
triangles as wide as scaling down needs. ``kernels/src/images.h`` does it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.loader import LOOPS


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an image to make: a box is scaled, and a window of the result is kept.

    Attributes:
        box: Top, left, height and width, in pixels of the image.
        size: Height and width to which the box is scaled.
        window: Top, left, height and width, in the scaled box, and within it.
        flips: Whether top and bottom, and left and right, of the window are swapped.
    """

    box: tuple[int, int, int, int]
    size: tuple[int, int]
    window: tuple[int, int, int, int]
    flips: tuple[bool, bool]


def resample(pixels: NDArray[np.uint8], part: Part, out: NDArray[np.uint8]) -> None:
    """Write a part of an image.

    Args:
        pixels: ``(height, width, 4) uint8`` with three used channels, or ``(height, width, 1)
            uint8``.
        part: The part to make.
        out: ``(height, width, channels)`` of the window, contiguous.
    """
    _, stride, lanes = pixels.shape
    numbers = np.array(
        (stride, lanes, *part.box, *part.size, *part.window, *part.flips), dtype=np.int64
    )
    LOOPS.resample(pixels.reshape(-1), numbers, out.reshape(-1))
