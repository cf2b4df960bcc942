"""Combine the crops, the scaling and the flips of an image into one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headrace.server.stages.images.resample import Part, resample

Box = tuple[int, int, int, int]
"""Top, left, height and width, in pixels."""


# Made several times for each image: frozen ones would take three times as long.
@dataclass(slots=True, eq=False)
class Frame:
    """An image and the geometry with which it will be painted.

    Attributes:
        pixels: ``(height, width, 4) uint8`` or ``(height, width, 1) uint8``: the source pixels.
        box: The part of the pixels that is scaled.
        size: The height and width that the box is scaled to.
        window: The part of the scaled box that is kept; beyond its borders there are zeros.
        flips: Whether top and bottom, and left and right, of the window are swapped.
        is_cut: Whether a window was cut or the box scaled.
        early: Which of the flips came before the scaling; weighted scaling is symmetric, but taking
            the nearest pixel is not.
    """

    pixels: NDArray[np.uint8]
    box: Box
    size: tuple[int, int]
    window: Box
    flips: tuple[bool, bool] = (False, False)
    is_cut: bool = False
    early: tuple[bool, bool] = (False, False)

    @property
    def height(self) -> int:
        """Return the number of rows."""
        return self.window[2]

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return self.window[3]

    def flipped(self, *, rows: bool = False, columns: bool = False) -> Frame:
        """Return the frame with top and bottom, or left and right, swapped."""
        return replace(self, flips=(self.flips[0] ^ rows, self.flips[1] ^ columns))

    def cropped(self, box: Box) -> Frame:
        """Return a part of the frame, which may exceed its borders."""
        top, left, height, width = box
        if self.flips[0]:
            top = self.height - top - height
        if self.flips[1]:
            left = self.width - left - width
        is_inside = top >= 0 and left >= 0 and top + height <= self.height
        if self.is_cut or not is_inside or left + width > self.width:
            window = (self.window[0] + top, self.window[1] + left, height, width)
            return replace(self, window=window, is_cut=True)
        kept = (self.box[0] + top, self.box[1] + left, height, width)
        return replace(self, box=kept, size=(height, width), window=(0, 0, height, width))

    def scaled(self, height: int, width: int) -> Frame:
        """Return the frame in another size; at most once, and before a cut exceeds the borders."""
        assert not self.is_cut
        window = (0, 0, height, width)
        return replace(self, size=(height, width), window=window, is_cut=True, early=self.flips)

    def paint(self, out: NDArray[np.uint8]) -> None:
        """Write the painted image.

        Args:
            out: ``(height, width, channels) uint8``, contiguous.
        """
        top, left, height, width = self.window
        first, start = max(top, 0), max(left, 0)
        rows = min(top + height, self.size[0]) - first
        columns = min(left + width, self.size[1]) - start
        if (rows, columns) == (height, width):
            resample(self.pixels, Part(self.box, self.size, self.window, self.flips), out)
            return
        out[...] = 0
        if rows <= 0 or columns <= 0:
            return
        inner = np.empty((rows, columns, out.shape[2]), np.uint8)
        window = (first, start, rows, columns)
        resample(self.pixels, Part(self.box, self.size, window, (False, False)), inner)
        out[first - top : first - top + rows, start - left : start - left + columns] = inner
        flip_rows, flip_columns = self.flips
        out[...] = out[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1].copy()


def frame_of(pixels: NDArray[np.uint8]) -> Frame:
    """Return a frame of unchanged pixels, ``(height, width, 4)`` or ``(height, width, 1)``."""
    height, width, _ = pixels.shape
    whole = (0, 0, height, width)
    return Frame(pixels, whole, (height, width), whole)
