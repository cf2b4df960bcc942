"""Tests of scaling: the compiled loop and NumPy agree to the bit, and Pillow to one level."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from headrace.server.stages.images.resample import Part, resample
from support.plain_images import resample_plainly, weigh


@st.composite
def _parts(draw: st.DrawFn) -> tuple[NDArray[np.uint8], Part]:
    def within(most: int) -> tuple[int, int]:
        length = draw(st.integers(1, most))
        return draw(st.integers(0, most - length)), length

    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    lanes = draw(st.sampled_from([1, 4]))
    pixels = np.random.default_rng(draw(st.integers(0, 2**32))).integers(
        0, 256, (height, width, lanes), np.uint8
    )
    (top, rows), (left, columns) = within(height), within(width)
    size = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    (first, high), (start, wide) = within(size[0]), within(size[1])
    flips = draw(st.tuples(st.booleans(), st.booleans()))
    return pixels, Part((top, left, rows, columns), size, (first, start, high, wide), flips)


@given(_parts())
@settings(deadline=None, max_examples=150)
def test_compiled_plain_and_pillow(case: tuple[NDArray[np.uint8], Part]) -> None:
    """Whatever the box, size, window and flips: the same, and Pillow's to one level."""
    pixels, part = case
    channels = min(3, pixels.shape[2])
    made = np.empty((*part.window[2:], channels), np.uint8)

    plain = made.copy()

    resample(pixels, part, made)
    resample_plainly(pixels, part, plain)

    assert np.array_equal(plain, made)
    top, left, rows, columns = part.box
    boxed = pixels[top : top + rows, left : left + columns, :channels]
    image = Image.fromarray(boxed if channels == 3 else boxed[:, :, 0])
    scaled = np.asarray(image.resize(part.size[::-1], Image.Resampling.BILINEAR))
    first, start, high, wide = part.window
    kept = scaled.reshape(*part.size, channels)[first : first + high, start : start + wide]
    kept = kept[:: -1 if part.flips[0] else 1, :: -1 if part.flips[1] else 1]
    assert np.abs(kept.astype(int) - made).max() <= 1


def test_identity() -> None:
    """An image scaled to its own size is the same."""
    pixels = np.random.default_rng(1).integers(0, 256, (31, 57, 4), np.uint8)
    out = np.empty((31, 57, 3), np.uint8)

    resample(pixels, Part((0, 0, 31, 57), (31, 57), (0, 0, 31, 57), (False, False)), out)

    assert np.array_equal(pixels[:, :, :3], out)


@given(st.integers(1, 5000), st.integers(1, 300))
def test_weights_add_up(length: int, size: int) -> None:
    """The weights of each place are all of 2^14, so that a flat image stays as it is."""
    firsts, weights = weigh(length, size, 0, size)

    assert set(weights.sum(axis=1).tolist()) == {1 << 14}
    assert firsts.min() >= 0
    # What lies past the end has no weight.
    past = firsts[:, None] + np.arange(weights.shape[1]) >= length
    assert not weights[past].any()
