"""Claims about mixing two images: compiled loops and NumPy give the same numbers, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.payload import BFLOAT16
from headrace.server.kernels.loader import LOOPS
from headrace.server.stages.images.bfloat16 import from_bfloat16
from headrace.server.stages.images.mixing import Mix, mixed


def _bits(numbers: NDArray[np.generic]) -> NDArray[np.uint16]:
    """Return the bits of numbers; of those that are none, one that stands for all."""
    halves = numbers.astype(np.float16)
    return np.where(np.isnan(halves), np.float16("nan"), halves).view(np.uint16)


@pytest.mark.parametrize("share", [0.0, 1.0, 0.5, 1 / 3, 1e-9, 0.9999999])
def test_all_numbers_of_16_bits(share: float) -> None:
    """Each with another one: what rounds, what is too large or too small, and what is no number."""
    own = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    other = np.random.default_rng(3).permutation(own)
    out = np.empty_like(own)
    with np.errstate(all="ignore"):
        Mix(share).mix(
            own.reshape(1, 256, 256), other.reshape(1, 256, 256), out.reshape(1, 256, 256)
        )
        products = (
            own.astype(np.float32) * np.float32(share),
            other.astype(np.float32) * np.float32(1.0 - share),
        )
        wanted = products[0] + products[1]

        assert _bits(out).tolist() == _bits(wanted).tolist()
        assert _bits(mixed(own, other, share)).tolist() == _bits(wanted).tolist()


@pytest.mark.parametrize("width", range(1, 20))
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_any_width_layout_and_place(width: int, dtype: type[np.generic]) -> None:
    """Channels first, last, or in an array that lies in no order; nothing beyond is written.

    Messages begin where they may: also at odd addresses.
    """
    rng = np.random.default_rng(width)
    own, other = (rng.normal(size=(3, 5, width)).astype(dtype) for _ in range(2))
    wanted = mixed(own, other, 0.3).astype(dtype)
    for axes in ((0, 1, 2), (1, 2, 0), (2, 1, 0)):
        back = np.argsort(axes)
        room = np.full(own.nbytes + 2, 7, np.uint8)
        out = room[1:-1].view(dtype).reshape(own.transpose(axes).shape).transpose(back)
        pair = [np.ascontiguousarray(each.transpose(axes)).transpose(back) for each in (own, other)]

        Mix(0.3).mix(pair[0], pair[1], out)

        assert np.array_equal(wanted, out)
        assert room[[0, -1]].tolist() == [7, 7]


_DTYPES = [np.dtype(np.float16), BFLOAT16, np.dtype(np.float32)]
# Of each type: numbers at which rounding, overflow and underflow begin, infinity and no number.
_EDGES = {
    2: [0, 1, 2, 0x3FF, 0x400, 0x7BFF, 0x7C00, 0x7E01, 0x3C00, 0x3C01, 0x7F, 0x80, 0x7F7F, 0x7F80],
    4: [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00001, 0x3F800000, 0x3F807FFF],
}


def _numbers(rng: np.random.Generator, dtype: np.dtype[np.generic], size: int) -> NDArray[np.uint8]:
    """Return the bytes of numbers: some random, some at the edges, of both signs."""
    bits = np.dtype(f"<u{dtype.itemsize}")
    edges = np.array(_EDGES[dtype.itemsize], bits)
    edges = np.concatenate([edges, edges | bits.type(1 << (8 * dtype.itemsize - 1))])
    found = rng.integers(0, 1 << (8 * dtype.itemsize), size, dtype=bits)
    is_edge = rng.random(size) < 0.5
    found[is_edge] = rng.choice(edges, int(is_edge.sum()))
    return found.view(np.uint8)


def _comparable(
    mix: Mix, own: NDArray[np.generic], other: NDArray[np.generic], made: NDArray[np.generic]
) -> NDArray[np.generic]:
    """Return bits, with one value for the sum of two products that are no numbers.

    Which of the two passes its bits on is the compiler's choice, and NumPy's.
    """
    own, other, made = (np.ascontiguousarray(each).reshape(-1) for each in (own, other, made))
    products = (_floats(own) * np.float32(mix.share), _floats(other) * np.float32(1 - mix.share))
    is_either = np.isnan(products[0]) & np.isnan(products[1])
    assert np.isnan(_floats(made))[is_either].all()
    bits = made.view(f"<u{made.dtype.itemsize}")
    return np.where(is_either, bits.dtype.type(0), bits)


def _floats(values: NDArray[np.generic]) -> NDArray[np.float32]:
    return from_bfloat16(values) if values.dtype == BFLOAT16 else values.astype(np.float32)


@settings(deadline=None, max_examples=200)
@given(
    dtype=st.sampled_from(_DTYPES),
    shape=st.tuples(st.integers(1, 4), st.integers(0, 9), st.integers(0, 40)),
    share=st.floats(0, 1),
    layout=st.sampled_from(["CHW", "HWC"]),
    places=st.tuples(*[st.integers(0, 5)] * 3, st.integers(0, 1 << 32)),
)
@example(dtype=BFLOAT16, shape=(3, 9, 33), share=0.5, layout="CHW", places=(1, 3, 5, 0))
def test_loops_do_what_numpy_does(
    dtype: np.dtype[np.generic],
    shape: tuple[int, int, int],
    share: float,
    layout: str,
    places: tuple[int, int, int, int],
) -> None:
    """The same bits of all types and layouts, at any address; nothing beyond is written."""
    *offsets, seed = places
    is_chw = layout == "CHW"
    rng = np.random.default_rng(seed)
    channels, height, width = shape
    size = channels * height * width
    rooms = []
    arrays = []
    for offset in offsets:
        room = np.full(size * dtype.itemsize + offset + 3, 7, np.uint8)
        inner = room[offset : room.size - 3]
        inner[:] = _numbers(rng, dtype, size)
        made = inner.view(dtype)
        made = made.reshape(shape) if is_chw else made.reshape(height, width, channels)
        arrays.append(made if is_chw else made.transpose(2, 0, 1))
        rooms.append(room)
    own, other, out = arrays
    wanted = np.empty_like(own)
    how = Mix(share)
    with np.errstate(all="ignore"):
        how.mix_plainly(own, other, wanted)

        how.mix(own, other, out)

        first, second = (_comparable(how, own, other, each) for each in (wanted, out))
    assert np.array_equal(first, second)
    assert rooms[2][: offsets[2]].tolist() == [7] * offsets[2]
    assert rooms[2][-3:].tolist() == [7, 7, 7]


def test_all_numbers_of_bfloat16() -> None:
    """Each with another one: the same bits as NumPy's, also of infinities and of tiny numbers."""
    own = np.arange(1 << 16, dtype=np.uint16).view(BFLOAT16).reshape(1, 256, 256)
    other = np.random.default_rng(5).permutation(own.reshape(-1)).reshape(own.shape)
    for how in map(Mix, (0.0, 1.0, 0.5, 1 / 3, 1e-9)):
        wanted, out = np.empty_like(own), np.empty_like(own)
        with np.errstate(all="ignore"):
            how.mix_plainly(own, other, wanted)
            how.mix(own, other, out)

            first, second = (_comparable(how, own, other, each) for each in (wanted, out))
        assert np.array_equal(first, second)


def test_what_does_not_fit_together_is_refused() -> None:
    """Sizes, kinds and shares are checked before anything is read."""
    loops = LOOPS
    images, shares = np.zeros(12, np.uint8), np.array([0.5, 0.5])
    for given_to in (
        (images, images[:8], shares, 0, images.copy()),
        (images, images, shares, 0, images[:8].copy()),
        (images, images, shares[:1], 0, images.copy()),
        (images, images, shares, 3, images.copy()),
        (images, images, shares, -1, images.copy()),
        (images[:10], images[:10], shares, 2, images[:10].copy()),
        (images[:9], images[:9], shares, 1, images[:9].copy()),
    ):
        with pytest.raises(ValueError, match="mix_pixels"):
            loops.mix_pixels(*given_to)
