"""Tests of image transforms: golden pixels, and what is refused."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.client import (
    CenterCrop,
    ColorJitter,
    DecodeImage,
    Normalize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomVerticalFlip,
    Resize,
)
from headrace.errors import BadArgumentError
from headrace.order import sample_keys, transform_keys, uniform_draws
from headrace.server.stages.images import exact
from headrace.server.stages.images.recipe import Recipe, recipe_of
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def recipe(*transforms: Any, **options: Any) -> Recipe:
    """Read transforms as a server does."""
    step = DecodeImage("image", transforms=transforms, **options)
    return recipe_of(step.to_message())


def _pixels(height: int = 60, width: int = 80, lanes: int = 4) -> NDArray[np.uint8]:
    # Numbers of a formula, so that no generator of random numbers stands between.
    places = np.arange(height * width * lanes, dtype=np.uint64) * np.uint64(2654435761)
    rough = (places >> np.uint64(13)) % np.uint64(64)
    smooth = np.add.outer(np.arange(height), 2 * np.arange(width))[:, :, None]
    return (rough.reshape(height, width, lanes) + smooth.astype(np.uint64) % 190).astype(np.uint8)


def _made(made: Recipe, *, epoch: int = 0, count: int = 4) -> NDArray[np.generic]:
    keys = sample_keys(7, epoch, np.arange(count))
    dtype = {pb.ELEMENT_TYPE_UINT8: "u1", pb.ELEMENT_TYPE_FLOAT16: "<f2"}
    out = np.empty((count, *made.shape), dtype.get(made.element_type, "<f4"))
    draws = made.draws(keys, 2)
    pixels = _pixels(lanes=4 if made.channels > 1 else 1)
    for row in range(count):
        made.make(pixels, draws, row, out[row])
    return out


_FLIPS = (RandomHorizontalFlip(), RandomVerticalFlip())
_GOLDEN = {
    "crop": (recipe(RandomResizedCrop(32)), "b692c5c7f0282198"),
    "flips": (recipe(RandomResizedCrop((24, 40)), *_FLIPS), "c0d30a24d1bc277a"),
    "flips before": (recipe(*_FLIPS, RandomResizedCrop(32)), "7674b013ac21817c"),
    "evaluation": (recipe(Resize(40), CenterCrop(32), Normalize(_MEAN, _STD)), "e7fbddf2e3ccb66b"),
    "longer side": (recipe(Resize(40, max_size=48), CenterCrop(32)), "d26e1d6c244b924f"),
    "zeros around": (recipe(CenterCrop((70, 90)), *_FLIPS), "a177fcd19835a382"),
    "jitter": (recipe(Resize((32, 32)), ColorJitter(0.4, 0.4, 0.4, 0.1)), "a4a07388a12731a4"),
    "erased": (
        recipe(
            RandomResizedCrop(32),
            Normalize(_MEAN, _STD, "float16"),
            RandomErasing(p=0.9, value=(0.5, 1, 2)),
            RandomHorizontalFlip(),
            layout="CHW",
        ),
        "ff44852f43fb4544",
    ),
    "grey": (
        recipe(RandomResizedCrop(32), ColorJitter(0.4, 0.4), RandomErasing(value=9), channels=1),
        "ebc394d64fcd1023",
    ),
}


@pytest.mark.parametrize("name", _GOLDEN)
def test_golden(name: str) -> None:
    """Pixels of version 1 of docs/augmentation.md; another digest is another version."""
    made, digest = _GOLDEN[name]

    assert digest == hashlib.sha256(_made(made).tobytes()).hexdigest()[:16]


def test_golden_draws() -> None:
    """The draws of docs/augmentation.md."""
    keys = transform_keys(sample_keys(7, 3, np.array([0, 5])), 1, 2)
    draws = uniform_draws(keys, 3)[0].tolist()

    assert ["0xb335249f3278fc07", "0x36684e2013212246"] == [f"{key:#018x}" for key in keys.tolist()]
    assert ["0x1.df9bf9871deaep-1", "0x1.fcf77e9ff7cbbp-1", "0x1.eeda8c781e707p-1"] == [
        draw.hex() for draw in draws
    ]


def test_epochs_and_samples_differ() -> None:
    """No two samples of an epoch have the same crop, and none has it again in the next epoch."""
    made = recipe(RandomResizedCrop(16))
    images = [*_made(made, count=50), *_made(made, epoch=1, count=50)]

    assert len({image.tobytes() for image in images}) == len(images)


def test_crops_are_spread() -> None:
    """Areas, ratios and places of crops are spread as they are to be, and stay in the image."""
    made = recipe(RandomResizedCrop(16))
    ((place, crop),) = made.geometry
    draws = made.draws(sample_keys(1, 0, np.arange(4000)), 0)[place].tolist()
    boxes = np.array([crop.box(375, 500, row) for row in draws])  # type: ignore[attr-defined]
    top, left, height, width = boxes.T

    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 375).all()
    assert (left + width <= 500).all()
    area = height * width / (375 * 500)
    assert 0.07 < area.min() < 0.1
    # Those that are large and tall do not fit in, so large ones are fewer than they would be.
    assert 0.40 < area.mean() < 0.46
    ratio = np.log(width / height)
    assert abs(ratio.mean()) < 0.05
    assert ratio.max() < math.log(4 / 3) + 0.03
    room = (left / np.maximum(500 - width, 1))[width < 480]
    assert abs(room.mean() - 0.5) < 0.03


@pytest.mark.parametrize("x", [-4.2, -1.0, -0.3, 0.0, 1e-9, 0.28, 1.0, 4.15])
def test_exact(x: float) -> None:
    """The exponential and the logarithm are those of the library, to 12 digits."""
    assert exact.exp(x) == pytest.approx(math.exp(x), rel=1e-12)
    assert exact.log(math.exp(x)) == pytest.approx(x, rel=1e-12, abs=1e-12)


_REFUSED = {
    "1 no one size": (Resize(32),),
    "2 scaled twice": (Resize(64), RandomResizedCrop(32)),
    "3 scaled when cut": (CenterCrop(32), Resize((16, 16))),
    "4 colours before the size": (ColorJitter(0.4), RandomResizedCrop(32)),
    "5 colours behind Normalize": (Resize((8, 8)), Normalize(_MEAN, _STD), ColorJitter(0.4)),
    "6 a crop behind colours": (Resize((8, 8)), ColorJitter(0.4), CenterCrop(4)),
    "7 normalized twice": (Resize((8, 8)), Normalize(_MEAN, _STD), Normalize(_MEAN, _STD)),
    "8 too few means": (Resize((8, 8)), Normalize((0.5,), (0.5,))),
    "9 a deviation of zero": (Resize((8, 8)), Normalize(_MEAN, (0.2, 0.0, 0.2))),
    "10 no byte": (Resize((8, 8)), RandomErasing(value=0.5)),
    "11 two values": (Resize((8, 8)), RandomErasing(value=(1, 2))),
    "12 too many": (RandomHorizontalFlip(),) * 16 + (Resize((8, 8)),),
    "13 max_size too small": (Resize(32, max_size=32), CenterCrop(8)),
    "14 max_size of two": (Resize((32, 32), max_size=40),),
}


@pytest.mark.parametrize("transforms", _REFUSED.values(), ids=list(_REFUSED))
def test_refused(transforms: tuple[Any, ...]) -> None:
    """What cannot be done, or not within bounds, is refused when the stream begins."""
    with pytest.raises(BadArgumentError, match="decode_image"):
        recipe(*transforms)


_CROP: dict[str, Any] = {"height": 8, "width": 8, "least_scale": 0.1, "greatest_scale": 1.0}
_WIRE = {
    "1 nothing": images_pb.ImageTransform(),
    "2 a size of none": images_pb.ImageTransform(resize=images_pb.Resize()),
    "3 no ratio": images_pb.ImageTransform(
        random_resized_crop=images_pb.RandomResizedCrop(**_CROP)
    ),
    "4 a ratio that is none": images_pb.ImageTransform(
        random_resized_crop=images_pb.RandomResizedCrop(
            **_CROP, least_ratio=math.nan, greatest_ratio=math.nan
        )
    ),
    "5 huge": images_pb.ImageTransform(center_crop=images_pb.CenterCrop(height=1 << 20, width=1)),
    "6 p of 2": images_pb.ImageTransform(random_vertical_flip=images_pb.RandomVerticalFlip(p=2)),
    "7 infinite brightness": images_pb.ImageTransform(
        color_jitter=images_pb.ColorJitter(brightness=[0, 1e400])
    ),
    "8 hue of a whole turn": images_pb.ImageTransform(
        color_jitter=images_pb.ColorJitter(hue=[-1, 1])
    ),
    "9 no value": images_pb.ImageTransform(
        random_erasing=images_pb.RandomErasing(
            least_scale=0.1, greatest_scale=1, least_ratio=1, greatest_ratio=1
        )
    ),
}


@pytest.mark.parametrize("transform", _WIRE.values(), ids=list(_WIRE))
def test_refused_on_the_wire(transform: images_pb.ImageTransform) -> None:
    """A client that checks nothing is told, whatever it sends."""
    size = images_pb.ImageTransform(resize=images_pb.Resize(size=[8, 8]))

    with pytest.raises(BadArgumentError, match="decode_image"):
        recipe_of(images_pb.DecodeImage(column="image", transforms=[size, transform]))
