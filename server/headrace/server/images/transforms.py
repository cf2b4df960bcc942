"""The transforms of images: those of torchvision.transforms.v2, with draws that are given to them.

Each says what size it leaves, as far as that is known before an image is, and how many draws it
takes for each image. docs/augmentation.md specifies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.images.colours import (
    change_brightness,
    change_contrast,
    change_hue,
    change_saturation,
)
from headrace.server.images.exact import exp, log
from headrace.server.images.frame import Box, Frame

Size: TypeAlias = tuple[int, int] | None
"""Height and width, or None where images differ."""

Range: TypeAlias = tuple[float, float]

_TRIES = 10
_DRAWS_OF_A_TRY = 2


class Geometry(Protocol):
    """Changes where pixels are."""

    @property
    def draw_count(self) -> int:
        """Return the draws that it takes for each image."""

    def size(self, before: Size) -> Size:
        """Return the size that it leaves."""

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Change an image."""


class Painting(Protocol):
    """Changes pixels where they are."""

    @property
    def draw_count(self) -> int:
        """Return the draws that it takes for each image."""

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Change an image, ``(height, width, channels)``, in place."""


@dataclass(frozen=True, slots=True)
class Resize:
    """To a height and width."""

    height: int
    width: int
    draw_count: int = 0

    def size(self, before: Size) -> Size:
        """Return what it was given."""
        del before
        return self.height, self.width

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Scale an image."""
        del draws
        return frame.scaled(self.height, self.width)


@dataclass(frozen=True, slots=True)
class ResizeShorter:
    """The shorter side to a length, and the longer in proportion, to `max_size` at most if any."""

    length: int
    max_size: int
    draw_count: int = 0

    def size(self, before: Size) -> Size:
        """Return what becomes of a known size."""
        if before is None:
            return None
        (height, width), length = before, self.length
        shorter, longer = sorted(before)
        long = length * longer // shorter
        if self.max_size and long > self.max_size:
            length, long = self.max_size * length // long, self.max_size
        length = max(1, length)
        return (length, long) if height <= width else (long, length)

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Scale an image."""
        del draws
        size = self.size((frame.height, frame.width))
        assert size is not None
        return frame.scaled(*size)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """Keep the middle."""

    height: int
    width: int
    draw_count: int = 0

    def size(self, before: Size) -> Size:
        """Return what it was given."""
        del before
        return self.height, self.width

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Cut an image."""
        del draws
        top = _middle(frame.height, self.height)
        left = _middle(frame.width, self.width)
        return frame.cropped((top, left, self.height, self.width))


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """Keep a random part, and scale it."""

    height: int
    width: int
    scale: Range
    ratio: Range
    draw_count: int = _DRAWS_OF_A_TRY * _TRIES + 2

    def size(self, before: Size) -> Size:
        """Return what it was given."""
        del before
        return self.height, self.width

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Cut an image, and scale it."""
        cropped = frame.cropped(self.box(frame.height, frame.width, draws))
        return cropped.scaled(self.height, self.width)

    def box(self, height: int, width: int, draws: Sequence[float]) -> Box:
        """Return the part that is kept."""
        low, high = log(self.ratio[0]), log(self.ratio[1])
        for at in range(0, _DRAWS_OF_A_TRY * _TRIES, _DRAWS_OF_A_TRY):
            area = height * width * _between(self.scale, draws[at])
            ratio = exp(_between((low, high), draws[at + 1]))
            columns = round(math.sqrt(area * ratio))
            rows = round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < rows <= height:
                top = int(draws[-2] * (height - rows + 1))
                left = int(draws[-1] * (width - columns + 1))
                return top, left, rows, columns
        least, greatest = self.ratio
        rows, columns = height, width
        if width / height < least:
            rows = max(1, round(width / least))
        elif width / height > greatest:
            columns = max(1, round(height * greatest))
        return (height - rows) // 2, (width - columns) // 2, rows, columns


@dataclass(frozen=True, slots=True)
class RandomFlip:
    """Swap sides with a probability."""

    p: float
    rows: bool
    draw_count: int = 1

    def size(self, before: Size) -> Size:
        """Return the same."""
        return before

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Flip an image, or not."""
        if draws[0] >= self.p:
            return frame
        return frame.flipped(rows=self.rows, columns=not self.rows)

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Flip what has been painted, or not."""
        if draws[0] < self.p:
            pixels[...] = (pixels[::-1] if self.rows else pixels[:, ::-1]).copy()


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change colours, in a random order."""

    brightness: Range | None
    contrast: Range | None
    saturation: Range | None
    hue: Range | None
    draw_count: int = 8

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Change an image."""
        changes = (
            (change_brightness, self.brightness),
            (change_contrast, self.contrast),
            (change_saturation, self.saturation),
            (change_hue, self.hue),
        )
        order = sorted(range(len(changes)), key=lambda place: draws[place])
        for place in order:
            change, bounds = changes[place]
            if bounds is not None:
                change(pixels.view(np.uint8), _between(bounds, draws[len(changes) + place]))


@dataclass(frozen=True, slots=True)
class RandomErasing:
    """Overwrite a random part."""

    p: float
    scale: Range
    ratio: Range
    value: tuple[float, ...]
    draw_count: int = 1 + _DRAWS_OF_A_TRY * _TRIES + 2

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Overwrite a part of an image, or not."""
        if draws[0] >= self.p:
            return
        height, width, _ = pixels.shape
        low, high = log(self.ratio[0]), log(self.ratio[1])
        for at in range(1, 1 + _DRAWS_OF_A_TRY * _TRIES, _DRAWS_OF_A_TRY):
            area = height * width * _between(self.scale, draws[at])
            ratio = exp(_between((low, high), draws[at + 1]))
            rows = round(math.sqrt(area * ratio))
            columns = round(math.sqrt(area / ratio))
            if rows < height and columns < width:
                top = int(draws[-2] * (height - rows + 1))
                left = int(draws[-1] * (width - columns + 1))
                pixels[top : top + rows, left : left + columns] = self.value
                return


def _between(bounds: Range, draw: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * draw


def _middle(length: int, kept: int) -> int:
    """Return where the middle of a line starts; before it, if the line is shorter."""
    # torchvision rounds halves of what is cut off to even, and of what is added down.
    return round((length - kept) / 2) if length >= kept else -((kept - length) // 2)
