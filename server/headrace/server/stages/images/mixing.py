"""Mix each image of a global batch with the next one: the draws and the arithmetic.

docs/augmentation.md specifies both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.payload import BFLOAT16
from headrace.server.kernels.loader import LOOPS
from headrace.server.stages.images.bfloat16 import bfloat16_bits, from_bfloat16
from headrace.server.stages.images.exact import exp, log

Box = tuple[int, int, int, int]
"""Top, left, bottom and right in pixels; the last two are exclusive."""

_TRIES = 64
DRAW_COUNT = 2 + 2 * _TRIES

# What ``kernels/src/images.h`` calls the elements that it mixes.
_LOOP_KINDS = {np.dtype(np.float16): 0, BFLOAT16: 1, np.dtype(np.float32): 2}


@dataclass(frozen=True, slots=True)
class Mix:
    """How the images of one global batch are mixed.

    Attributes:
        share: The weight of each sample's own label, in [0, 1]; the rest is the next sample's.
        box: The part that is pasted from the next image; None if all pixels are mixed.
    """

    share: float
    box: Box | None = None

    def mix(
        self, own: NDArray[np.generic], other: NDArray[np.generic], out: NDArray[np.generic]
    ) -> None:
        """Write a mixed image.

        Args:
            own: The image, ``(..., height, width)``, contiguous.
            other: The next image, of the same shape and type.
            out: The target of the result; it is written once and not read.
        """
        if not self._mixed_by_loops(own, other, out):
            self.mix_plainly(own, other, out)

    def mix_plainly(
        self, own: NDArray[np.generic], other: NDArray[np.generic], out: NDArray[np.generic]
    ) -> None:
        """Write a mixed image without the compiled loops."""
        if self.box is not None:
            top, left, bottom, right = self.box
            out[...] = own
            out[..., top:bottom, left:right] = other[..., top:bottom, left:right]
        elif own.dtype == BFLOAT16:
            one, next_one = (from_bfloat16(np.ascontiguousarray(each)) for each in (own, other))
            out[...] = bfloat16_bits(mixed(one, next_one, self.share)).view(BFLOAT16)
        else:
            out[...] = mixed(own, other, self.share)

    def _mixed_by_loops(
        self, own: NDArray[np.generic], other: NDArray[np.generic], out: NDArray[np.generic]
    ) -> bool:
        """Write a mixed image with the compiled loops, in a thirtieth of the time.

        Returns:
            Whether it was written; nothing is if the arrays or the processor do not allow it.
        """
        kind = _LOOP_KINDS.get(own.dtype)
        if kind is None or self.box is not None:
            return False
        arrays = [own, other, out]
        if not own.flags.c_contiguous:
            # Channels that come last in memory.
            arrays = [np.moveaxis(each, 0, -1) for each in arrays]
        if not all(each.flags.c_contiguous for each in arrays):
            return False
        one, next_one, into = (each.reshape(-1).view(np.uint8) for each in arrays)
        shares = np.array([self.share, 1.0 - self.share])
        return bool(LOOPS.mix_pixels(one, next_one, shares, kind, into))


def mixed(
    own: NDArray[np.generic], other: NDArray[np.generic], share: float
) -> NDArray[np.float32]:
    """Return the weighted sum of two floating-point arrays, each product rounded to float32."""
    # Whole arrays first: casts in the middle of a product take twice the time.
    made: NDArray[np.float32] = own.astype(np.float32, copy=False) * np.float32(share)
    made += other.astype(np.float32, copy=False) * np.float32(1.0 - share)
    return made


def mix_up(alpha: float, draws: Sequence[float]) -> Mix:
    """Return how `MixUp` mixes a global batch."""
    return Mix(beta_draw(alpha, draws[2:]))


def cut_mix(alpha: float, height: int, width: int, draws: Sequence[float]) -> Mix:
    """Return how `CutMix` mixes a global batch of images of one size."""
    reach = 0.5 * math.sqrt(1.0 - beta_draw(alpha, draws[2:]))
    x, y = int(draws[0] * width), int(draws[1] * height)
    half_width, half_height = int(reach * width), int(reach * height)
    top, bottom = max(y - half_height, 0), min(y + half_height, height)
    left, right = max(x - half_width, 0), min(x + half_width, width)
    share = 1.0 - (bottom - top) * (right - left) / (width * height)
    return Mix(share, (top, left, bottom, right))


def beta_draw(alpha: float, draws: Sequence[float]) -> float:
    """Return a number from the beta distribution with both parameters equal to `alpha`.

    *Source*: up to 1, M. D. Jöhnk's method (Metrika 8, 1964); above 1, R. C. H. Cheng's algorithm
    BB (Communications of the ACM 21, 1978).

    Args:
        alpha: The parameter, in [0.01, 100].
        draws: Uniform numbers, two per attempt; if all attempts fail, the result is 0.5.
    """
    if alpha == 1.0:
        return draws[0]
    attempt = _try_small if alpha < 1.0 else _try_large
    for at in range(0, 2 * _TRIES, 2):
        if draws[at] and draws[at + 1]:
            found = attempt(alpha, draws[at], draws[at + 1])
            if found is not None:
                return found
    return 0.5


def _try_small(alpha: float, first: float, second: float) -> float | None:
    x, y = exp(log(first) / alpha), exp(log(second) / alpha)
    return x / (x + y) if 0.0 < x + y <= 1.0 else None


def _try_large(alpha: float, first: float, second: float) -> float | None:
    beta = 1.0 / math.sqrt(alpha)
    v = beta * (log(first) - log(1.0 - first))
    w = alpha * exp(v)
    z = first * first * second
    r = (alpha + math.sqrt(alpha)) * v - log(4.0)
    if r + 2.0 * alpha * log(2.0 * alpha / (alpha + w)) < log(z):
        return None
    return w / (alpha + w)
