"""Change the colours of an image in float32, as torchvision.transforms.v2 does for uint8."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float32]

# Luminance of ITU-R 601, with the digits that torchvision and Pillow use.
_RED, _GREEN, _BLUE = np.float32(0.2989), np.float32(0.587), np.float32(0.114)
_MOST = np.float32(255.0)
_ONE = np.float32(1.0)
# The factor with which torchvision turns numbers up to 1 into bytes: 255 + 1 - 0.001.
_TO_BYTES = np.float32(255.999)


def change_brightness(pixels: NDArray[np.uint8], factor: float) -> None:
    """Multiply all values by a factor."""
    _write(pixels, pixels * np.float32(factor))


def change_contrast(pixels: NDArray[np.uint8], factor: float) -> None:
    """Move all values away from the mean luminance, or towards it."""
    grey = pixels if pixels.shape[2] == 1 else _grey(pixels)
    total = int(grey.sum(dtype=np.int64))
    mean = np.float32(total / (pixels.shape[0] * pixels.shape[1]))
    _blend(pixels, mean, factor)


def change_saturation(pixels: NDArray[np.uint8], factor: float) -> None:
    """Move all values away from their own luminance, or towards it."""
    if pixels.shape[2] > 1:
        _blend(pixels, _grey(pixels).astype(np.float32)[:, :, None], factor)


def change_hue(pixels: NDArray[np.uint8], turn: float) -> None:
    """Rotate the hues.

    Args:
        pixels: ``(height, width, channels)``, changed in place.
        turn: How far to rotate the hue, in full turns, in [-0.5, 0.5].
    """
    if pixels.shape[2] == 1:
        return
    red, green, blue = (pixels[:, :, place] * (_ONE / _MOST) for place in range(3))
    most = np.maximum(np.maximum(red, green), blue)
    chroma = most - np.minimum(np.minimum(red, green), blue)
    is_grey = chroma == 0
    saturation = chroma / np.where(is_grey, _ONE, most)
    divisor = np.where(is_grey, _ONE, chroma)
    red_part, green_part, blue_part = (
        (most - red) / divisor,
        (most - green) / divisor,
        (most - blue) / divisor,
    )
    hue = np.where(
        most == red,
        blue_part - green_part,
        np.where(
            most == green,
            np.float32(2.0) + red_part - blue_part,
            np.float32(4.0) + green_part - red_part,
        ),
    )
    hue = np.fmod(hue * np.float32(1 / 6) + _ONE, _ONE)
    hue += np.float32(turn)
    hue -= np.floor(hue)
    _write_hsv(pixels, hue, saturation, most)


def _write_hsv(
    pixels: NDArray[np.uint8], hue: _Floats, saturation: _Floats, value: _Floats
) -> None:
    sixth = hue * np.float32(6.0)
    sector = np.floor(sixth)
    part = sixth - sector
    rest, share = _ONE - saturation, saturation * part
    low = np.clip(rest * value, 0, _ONE)
    falling = np.clip((_ONE - share) * value, 0, _ONE)
    rising = np.clip((share + rest) * value, 0, _ONE)
    sector = sector.astype(np.int32) % 6
    choices = (
        (value, falling, low, low, rising, value),
        (rising, value, value, falling, low, low),
        (low, low, rising, value, value, falling),
    )
    for place, choice in enumerate(choices):
        pixels[:, :, place] = (np.choose(sector, choice) * _TO_BYTES).astype(np.uint8)


def _grey(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    grey = pixels[:, :, 0] * _RED
    grey += pixels[:, :, 1] * _GREEN
    grey += pixels[:, :, 2] * _BLUE
    return grey.astype(np.uint8)


def _blend(pixels: NDArray[np.uint8], other: _Floats | np.float32, factor: float) -> None:
    mixed = pixels * np.float32(factor)
    mixed += other * np.float32(1.0 - factor)
    _write(pixels, mixed)


def _write(pixels: NDArray[np.uint8], numbers: _Floats) -> None:
    pixels[...] = np.clip(numbers, 0, _MOST, out=numbers)
