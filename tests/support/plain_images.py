"""What the compiled loops do to images, written with NumPy alone: the reference of their tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headrace.server.stages.images.resample import Part

WEIGHT_BITS = 14
# A sum of weighted bytes is kept with six fractional bits.
_KEPT_SHIFT = 8
# A few MiB in total.
_BAND_ELEMENTS = 1 << 18
_LAST_SHIFT = 2 * WEIGHT_BITS - _KEPT_SHIFT


def map_levels_plainly(
    pixels: NDArray[np.uint8],
    table: NDArray[np.generic],
    out: NDArray[np.generic],
    *,
    is_chw: bool,
) -> None:
    """Write the final values without the compiled loop."""
    target = out.transpose(1, 2, 0) if is_chw else out
    for channel in range(pixels.shape[2]):
        target[:, :, channel] = table[channel][pixels[:, :, channel]]


def resample_plainly(pixels: NDArray[np.uint8], part: Part, out: NDArray[np.uint8]) -> None:
    """Write a part of an image without the compiled loop."""
    top, left, height, width = part.box
    window_top, window_left, rows, columns = part.window
    flip_rows, flip_columns = part.flips
    boxed = pixels[top : top + height, left : left + width, : out.shape[2]]
    across = weigh(width, part.size[1], window_left, columns)
    target = out[:: -1 if flip_rows else 1, :: -1 if flip_columns else 1]
    # A few rows at a time, so that intermediate values take little memory.
    step = max(1, _BAND_ELEMENTS // (max(width, columns) * out.shape[2]))
    for first in range(0, rows, step):
        count = min(step, rows - first)
        down = weigh(height, part.size[0], window_top + first, count)
        kept = _sums(boxed, down) >> _KEPT_SHIFT
        made = _sums(kept.transpose(1, 0, 2), across, half=1 << (_LAST_SHIFT - 1))
        target[first : first + count] = made.transpose(1, 0, 2) >> _LAST_SHIFT


def _sums(
    lines: NDArray[np.integer],
    weighed: tuple[NDArray[np.int64], NDArray[np.int32]],
    *,
    half: int = 1 << (_KEPT_SHIFT - 1),
) -> NDArray[np.int32]:
    firsts, weights = weighed
    sums = np.full((len(firsts), *lines.shape[1:]), half, np.int32)
    for tap in range(weights.shape[1]):
        sums += lines[np.minimum(firsts + tap, len(lines) - 1)] * weights[:, tap, None, None]
    return sums


def weigh(
    length: int, size: int, first: int, count: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return for each place of a scaled line its first source pixel, and the weights of its pixels.

    Args:
        length: The number of pixels of the line.
        size: The number of places that they are scaled to.
        first: The first requested place.
        count: The number of requested places.

    Returns:
        ``(count,)`` first pixels, and ``(count, taps)`` weights, where each row adds up to 2^14.
    """
    scale = length / size
    support = max(scale, 1.0)
    centres = (np.arange(first, first + count) + 0.5) * scale
    firsts = np.maximum(np.floor(centres - support + 0.5), 0.0)
    ends = np.minimum(np.floor(centres + support + 0.5), float(length))
    taps = int((ends - firsts).max())
    places = firsts[:, None] + np.arange(taps)
    near = np.maximum(1.0 - np.abs((places + 0.5 - centres[:, None]) / support), 0.0)
    near[places >= ends[:, None]] = 0.0
    totals = np.zeros(count)
    # One after the other, in the order of the compiled loop: NumPy's sum adds in pairs.
    for tap in range(taps):
        totals += near[:, tap]
    weights = np.floor(near / totals[:, None] * (1 << WEIGHT_BITS) + 0.5).astype(np.int32)
    rows = np.arange(count)
    weights[rows, weights.argmax(axis=1)] += (1 << WEIGHT_BITS) - weights.sum(axis=1)
    return firsts.astype(np.int64), weights
