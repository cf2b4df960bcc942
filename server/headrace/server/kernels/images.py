"""Scale images, compiled; see `headrace.server.kernels.compiled`."""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from headrace.server.kernels.compiler import BYTES_IN, BYTES_OUT, INTS_IN, kernel

# As in `headrace.server.images.resample`, which does the same with NumPy.
_WEIGHT_BITS = 14
_KEPT_SHIFT = 8
_LAST_SHIFT = 20

_FIRSTS = nb.types.Array(nb.int64, 1, "C")
_WEIGHTS = nb.types.Array(nb.int32, 2, "C")
_SUMS = nb.types.Array(nb.int32, 1, "C")
_KEPT = nb.types.Array(nb.int16, 1, "C")


@kernel(nb.int64, nb.int64, nb.int64, _FIRSTS, _WEIGHTS)
def _weigh(
    length: int, size: int, first: int, firsts: NDArray[np.int64], weights: NDArray[np.int32]
) -> None:
    """Do what `headrace.server.images.resample.weigh` does."""
    scale = length / size
    support = max(scale, 1.0)
    for i in range(firsts.size):
        centre = (np.float64(first + i) + 0.5) * scale
        begin: int = max(int(np.floor(centre - support + 0.5)), 0)
        end: int = min(int(np.floor(centre + support + 0.5)), length)
        total = 0.0
        for place in range(begin, end):
            total += max(1.0 - abs((np.float64(place) + 0.5 - centre) / support), 0.0)
        left, best = np.int32(1 << _WEIGHT_BITS), 0
        for place in range(begin, end):
            near = max(1.0 - abs((np.float64(place) + 0.5 - centre) / support), 0.0)
            weight = np.int32(np.floor(near / total * (1 << _WEIGHT_BITS) + 0.5))
            tap = place - begin
            weights[i, tap] = weight
            left -= weight
            if weight > weights[i, best]:
                best = tap
        for tap in range(end - begin, weights.shape[1]):
            weights[i, tap] = 0
        weights[i, best] += left
        firsts[i] = begin


@kernel(BYTES_IN, nb.int64, nb.int64, _WEIGHTS, nb.int64, _SUMS, _KEPT)
def _weigh_columns(  # noqa: PLR0917 - the arrays that Numba wants one by one
    pixels: NDArray[np.uint8],
    at: int,
    stride: int,
    weights: NDArray[np.int32],
    row: int,
    sums: NDArray[np.int32],
    kept: NDArray[np.int16],
) -> None:
    """Weigh the bytes of some rows that lie below each other."""
    size = kept.size
    weight = weights[row, 0]
    source = pixels[at : at + size]
    for i in range(size):
        sums[i] = np.int32(source[i]) * weight + np.int32(1 << (_KEPT_SHIFT - 1))
    for tap in range(1, weights.shape[1]):
        weight = weights[row, tap]
        if weight == 0:
            continue
        source = pixels[at + tap * stride : at + tap * stride + size]
        for i in range(size):
            sums[i] += np.int32(source[i]) * weight
    for i in range(size):
        kept[i] = np.int16(sums[i] >> np.int32(_KEPT_SHIFT))


@kernel(BYTES_IN, INTS_IN, BYTES_OUT)
def resample(pixels: NDArray[np.uint8], numbers: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
    """Scale a part of an image, as `headrace.server.images.resample.resample` says.

    Args:
        pixels: Rows of pixels of four bytes, of which three count, or of one.
        numbers: Pixels of a row, bytes of a pixel; top, left, height and width of the box; height
            and width of what it is scaled to; top, left, height and width of the window; whether
            rows, and columns, are flipped.
        out: The window.
    """
    stride, lanes, top, left, height, width = numbers[:6]
    size_y, size_x, first_y, first_x, rows, columns, flip_y, flip_x = numbers[6:14]
    firsts_y, firsts_x = np.empty(rows, np.int64), np.empty(columns, np.int64)
    weights_y = np.empty((rows, 2 * int(max(height / size_y, 1.0)) + 3), np.int32)
    weights_x = np.empty((columns, 2 * int(max(width / size_x, 1.0)) + 3), np.int32)
    _weigh(height, size_y, first_y, firsts_y, weights_y)
    _weigh(width, size_x, first_x, firsts_x, weights_x)
    taps = weights_x.shape[1]
    while taps > 1 and not weights_x[:, taps - 1].any():
        taps -= 1
    begin = firsts_x[0]
    # Past the last pixel stand zeros, for weights of zero.
    end = min(firsts_x[columns - 1] + taps, width)
    kept = np.zeros((end - begin + taps) * lanes, np.int16)
    sums = np.empty((end - begin) * lanes, np.int32)
    is_grey = lanes == 1
    channels = 1 if is_grey else 3
    half = np.int32(1 << (_LAST_SHIFT - 1))
    for y in range(rows):
        at = ((top + firsts_y[y]) * stride + left + begin) * lanes
        _weigh_columns(pixels, at, stride * lanes, weights_y, y, sums, kept[: sums.size])
        place = (rows - 1 - y if flip_y else y) * columns * channels
        for i in range(columns):
            x = columns - 1 - i if flip_x else i
            source = kept[(firsts_x[x] - begin) * lanes :]
            weight = weights_x[x]
            if not is_grey:
                red, green, blue = half, half, half
                for tap in range(taps):
                    red += np.int32(source[4 * tap]) * weight[tap]
                    green += np.int32(source[4 * tap + 1]) * weight[tap]
                    blue += np.int32(source[4 * tap + 2]) * weight[tap]
                out[place] = red >> np.int32(_LAST_SHIFT)
                out[place + 1] = green >> np.int32(_LAST_SHIFT)
                out[place + 2] = blue >> np.int32(_LAST_SHIFT)
                place += 3
            else:
                grey = half
                for tap in range(taps):
                    grey += np.int32(source[tap]) * weight[tap]
                out[place] = grey >> np.int32(_LAST_SHIFT)
                place += 1
