"""Tests of decoded images that are kept.

How it could give wrong pixels or take memory, and what holds against each: another file's pixels,
or those of other channels (`test_same_pixels`); more than the budget, also from several threads
(`test_never_more_than_the_budget`); nothing found where more is read than fits
(`test_part_of_too_much_is_kept`); images of jobs that are gone (`test_what_nobody_wants_goes`).
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from headrace.client import DecodeImage, NumpyDataset, RandomResizedCrop
from headrace.server.stages.images import ImageSettings
from headrace.server.stages.images.pixel_cache import PixelCache
from support.datasets import write_dataset
from support.running import server_of
from support.threads import at_once

_PIXELS = 100
_ONE = _PIXELS + 512


def _pixels(number: int, size: int = _PIXELS) -> NDArray[np.uint8]:
    return np.full((1, size, 1), number % 256, np.uint8)


def _ask(cache: PixelCache, number: int, size: int = _PIXELS) -> bool:
    """Do what a decoder does; return whether the image was kept."""
    key = cache.key(memoryview(str(number).encode()), 1)
    found = cache.get(key)
    if found is None:
        cache.put(key, _pixels(number, size))
        return False
    assert np.array_equal(found, _pixels(number, size))
    assert not found.flags.writeable
    return True


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 400))),
    st.integers(0, 20 * _ONE),
)
def test_never_more_than_the_budget(asked: list[tuple[int, int]], budget: int) -> None:
    """Whatever is asked for, what is kept is counted and fits."""
    cache, sizes = PixelCache(budget), dict[int, int]()
    for number, size in asked:
        _ask(cache, number, sizes.setdefault(number, size))
        assert cache.used_bytes <= budget
        assert cache.used_bytes == sum(each.nbytes + 512 for each, _ in cache._kept.values())


def test_part_of_too_much_is_kept() -> None:
    """Of four times as many images as fit a quarter is found in each epoch, in any order."""
    cache = PixelCache(100 * _ONE)
    random = np.random.default_rng(1)
    hits = [sum(_ask(cache, int(each)) for each in random.permutation(400)) for _ in range(5)]

    assert hits == [0, 100, 100, 100, 100]


def test_what_nobody_wants_goes() -> None:
    """Images that nobody has asked for in a while make room for those that somebody wants."""
    cache = PixelCache(100 * _ONE)
    for number in range(100):
        _ask(cache, number)
    hits = [sum(_ask(cache, number) for number in range(1000, 1100)) for _ in range(12)]

    assert hits[0] == 0
    assert hits[-1] == 100


def test_several_threads() -> None:
    """Threads that want the same images at once keep each once, and count right."""
    cache = PixelCache(50 * _ONE)
    at_once(lambda _: [_ask(cache, number % 80) for number in range(4000)], range(4))

    assert cache.used_bytes == len(cache._kept) * _ONE <= 50 * _ONE


def _photo(number: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(number).integers(0, 256, (40, 50, 3), np.uint8)
    kind = ("JPEG", "PNG", "WEBP")[number % 3]
    exif = Image.Exif()
    exif[0x0112] = 1 + number % 8
    Image.fromarray(pixels).save(file, kind, exif=exif)
    return file.getvalue()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Photographs of several formats, turned, some of which come twice."""
    url = str(tmp_path_factory.mktemp("d"))
    files = [_photo(number % 30) for number in range(48)]
    table = pa.table({"image": pa.array(files, pa.binary()), "number": list(range(48))})
    write_dataset(url, table, shard_samples=[48], block_bytes=4096)
    return url


def _read(url: str, budget: int, channels: list[Any]) -> list[bytes]:
    settings = ImageSettings(decoded_cache_bytes=budget)
    found = []
    with server_of({"d": url}, plugs=(settings,)) as server:
        for each in channels:
            step = DecodeImage("image", transforms=[RandomResizedCrop(20)], channels=each)
            with NumpyDataset(
                server.address, "d", batch_size=8, seed=4, stages=[step], epochs=3
            ) as dataset:
                found += [arrays["image"].tobytes() for _ in range(3) for arrays in dataset]
    return found


def test_same_pixels(url: str) -> None:
    """Over epochs and jobs of other channels, with room for all, for some and for none."""
    plain = _read(url, 0, [3, 1, 3])
    for budget in (1 << 20, 100 << 10, 1):
        assert plain == _read(url, budget, [3, 1, 3])
