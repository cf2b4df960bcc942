"""Claims about mixing two images: compiled loops and NumPy give the same numbers, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.server.images.mixing import Mix, mixed
from support.loops import compiled_loops


@pytest.fixture(scope="module", autouse=True)
def _loops() -> None:
    """The compiled loops, which are compared with NumPy."""
    compiled_loops()


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
