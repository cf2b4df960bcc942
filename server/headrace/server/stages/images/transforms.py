"""Transform images as torchvision.transforms.v2 does, with random draws as arguments.

Each transform says which size results, if that is known before the image is, and how many draws it
takes per image. docs/augmentation.md specifies them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.server.stages.images.colours import (
    change_brightness,
    change_contrast,
    change_hue,
    change_saturation,
)
from headrace.server.stages.images.exact import exp, log
from headrace.server.stages.images.frame import Box, Frame

Size: TypeAlias = tuple[int, int] | None
"""Height and width, or None if images differ."""

Range: TypeAlias = tuple[float, float]

_TRIES = 10
_DRAWS_OF_A_TRY = 2


class Geometry(Protocol):
    """A transform that moves pixels."""

    @property
    def draw_count(self) -> int:
        """Return the number of draws per image."""

    def size(self, before: Size) -> Size:
        """Return the resulting size."""

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Change an image."""


class Painting(Protocol):
    """A transform that changes the values of pixels."""

    @property
    def draw_count(self) -> int:
        """Return the number of draws per image."""

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Change an image, ``(height, width, channels)``, in place."""


@dataclass(frozen=True, slots=True)
class _ToSize:
    """A transform whose result has a fixed size."""

    height: int
    width: int

    def size(self, before: Size) -> Size:
        """Return that size."""
        del before
        return self.height, self.width


@dataclass(frozen=True, slots=True)
class Resize(_ToSize):
    """Scale to a height and width."""

    draw_count: int = 0

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Scale an image."""
        del draws
        return frame.scaled(self.height, self.width)


@dataclass(frozen=True, slots=True)
class ResizeShorter:
    """Scale the shorter side to a length, and the longer in proportion, to at most `max_size`."""

    length: int
    max_size: int
    draw_count: int = 0

    def size(self, before: Size) -> Size:
        """Return the size that results from a known size."""
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
class CenterCrop(_ToSize):
    """Keep the centre."""

    draw_count: int = 0

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Crop an image."""
        del draws
        top = _middle(frame.height, self.height)
        left = _middle(frame.width, self.width)
        return frame.cropped((top, left, self.height, self.width))


@dataclass(frozen=True, slots=True)
class Cover(_ToSize):
    """Keep as much of the centre as has the proportions of a size, and scale to it."""

    draw_count: int = 0

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Crop an image and scale the result."""
        del draws
        scale = max(self.height / frame.height, self.width / frame.width)
        rows = min(frame.height, max(1, round(self.height / scale)))
        columns = min(frame.width, max(1, round(self.width / scale)))
        box = (_middle(frame.height, rows), _middle(frame.width, columns), rows, columns)
        return frame.cropped(box).scaled(self.height, self.width)


@dataclass(frozen=True, slots=True)
class Contain(_ToSize):
    """Scale to fit within a size, and add zeros on both sides."""

    draw_count: int = 0

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Scale an image."""
        del draws
        scale = min(self.height / frame.height, self.width / frame.width)
        rows = max(1, min(self.height, round(frame.height * scale)))
        columns = max(1, min(self.width, round(frame.width * scale)))
        box = (_middle(rows, self.height), _middle(columns, self.width), self.height, self.width)
        return frame.scaled(rows, columns).cropped(box)


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(_ToSize):
    """Keep a random part and scale it."""

    scale: Range
    ratio: Range
    draw_count: int = _DRAWS_OF_A_TRY * _TRIES + 2

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Crop an image and scale the result."""
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
    """Flip with a given probability."""

    p: float
    rows: bool
    draw_count: int = 1

    def size(self, before: Size) -> Size:
        """Return the size unchanged."""
        return before

    def apply(self, frame: Frame, draws: Sequence[float]) -> Frame:
        """Flip an image, or not."""
        if draws[0] >= self.p:
            return frame
        return frame.flipped(rows=self.rows, columns=not self.rows)

    def paint(self, pixels: NDArray[np.generic], draws: Sequence[float]) -> None:
        """Flip painted pixels, or not."""
        if draws[0] < self.p:
            pixels[...] = (pixels[::-1] if self.rows else pixels[:, ::-1]).copy()


@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Change colours, in random order."""

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
    """Return where the centre of a line starts, which is negative if the line is shorter."""
    # torchvision rounds half of the removed length to even, and half of the added length down.
    return round((length - kept) / 2) if length >= kept else -((kept - length) // 2)
