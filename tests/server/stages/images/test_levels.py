"""Claims about the final values of pixels: the compiled loop and NumPy write the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.kernels.loader import LOOPS
from headrace.server.stages.images.levels import map_levels
from support.plain_images import map_levels_plainly


@settings(deadline=None, max_examples=200)
@given(
    dtype=st.sampled_from(["u1", "<u2", "<f2", "<f4"]),
    shape=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(1, 4)),
    is_chw=st.booleans(),
    offset=st.integers(0, 5),
    seed=st.integers(0, 1 << 32),
)
def test_the_loop_does_what_numpy_does(
    dtype: str,
    shape: tuple[int, int, int],
    is_chw: bool,  # noqa: FBT001 - drawn
    offset: int,
    seed: int,
) -> None:
    """Any type, size, layout and address, any bits in the table; nothing beyond is written."""
    rng = np.random.default_rng(seed)
    height, width, channels = shape
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    item_bytes = np.dtype(dtype).itemsize
    bits = rng.integers(0, 256, (channels, 256 * item_bytes), dtype=np.uint8)
    table = bits.view(dtype)
    target = (channels, height, width) if is_chw else shape
    wanted = np.empty(target, dtype)
    room = np.full(pixels.size * item_bytes + offset + 3, 7, np.uint8)
    out = room[offset : room.size - 3].view(dtype).reshape(target)
    map_levels_plainly(pixels, table, wanted, is_chw=is_chw)

    map_levels(pixels, table, out, is_chw=is_chw)

    assert wanted.tobytes() == out.tobytes()
    assert room[:offset].tolist() == [7] * offset
    assert room[-3:].tolist() == [7, 7, 7]


@pytest.mark.parametrize("is_chw", [False, True])
def test_no_table_is_no_change(is_chw: bool) -> None:  # noqa: FBT001 - a parameter
    """Without a table, levels are only put in their place."""
    pixels = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    wanted = pixels.transpose(2, 0, 1) if is_chw else pixels
    out = np.empty(wanted.shape, np.uint8)

    map_levels(pixels, None, out, is_chw=is_chw)

    assert np.array_equal(wanted, out)


def test_what_does_not_fit_together_is_refused() -> None:
    """Sizes are checked before anything is read."""
    pixels, out = np.zeros(12, np.uint8), np.zeros(24, np.uint8)
    table = np.zeros(3 * 512, np.uint8)
    numbers = np.array([3, 2, 1])
    for given_to in (
        (pixels[:11], table, numbers, out),
        (pixels, table[:-1], numbers, out),
        (pixels, table, numbers[:2], out),
        (pixels, table, numbers, out[:23]),
        (pixels, table, np.array([0, 2, 1]), out),
        (pixels, table, np.array([5, 2, 1]), out),
        (pixels, table, np.array([3, 8, 1]), out),
    ):
        with pytest.raises(ValueError, match="map_levels"):
            LOOPS.map_levels(*given_to)
