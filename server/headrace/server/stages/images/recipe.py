"""The transforms of a column of images, read from a request and checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import transform_keys, uniform_draws
from headrace.server.stages.images.bfloat16 import bfloat16_bits
from headrace.server.stages.images.frame import Frame, frame_of
from headrace.server.stages.images.levels import map_levels
from headrace.server.stages.images.placement import frame_of_size
from headrace.server.stages.images.transforms import (
    CenterCrop,
    ColorJitter,
    Contain,
    Cover,
    Geometry,
    Painting,
    RandomErasing,
    RandomFlip,
    RandomResizedCrop,
    Range,
    Resize,
    ResizeShorter,
    Size,
)
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

Draws = NDArray[np.float64]
"""``(images, draws)`` in [0, 1)."""

MOST_TRANSFORMS = 16
_SIDE_LIMIT = 1 << 14
_RATIO_LIMIT = 64.0
# Images are reduced while they are decoded to no less than this multiple of the requested size:
# Pillow's own choice for thumbnails, fast and hard to tell from full decoding.
_REDUCING_GAP = 2
_FITS: dict[int, type[Cover | Contain | Resize]] = {
    images_pb.IMAGE_FIT_UNSPECIFIED: Cover,
    images_pb.IMAGE_FIT_COVER: Cover,
    images_pb.IMAGE_FIT_CONTAIN: Contain,
    images_pb.IMAGE_FIT_STRETCH: Resize,
}
Fitted: TypeAlias = Cover | Contain | Resize
_FLOATS = {
    pb.ELEMENT_TYPE_UNSPECIFIED: pb.ELEMENT_TYPE_FLOAT32,
    pb.ELEMENT_TYPE_FLOAT32: pb.ELEMENT_TYPE_FLOAT32,
    pb.ELEMENT_TYPE_FLOAT16: pb.ELEMENT_TYPE_FLOAT16,
    pb.ELEMENT_TYPE_BFLOAT16: pb.ELEMENT_TYPE_BFLOAT16,
}


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """The transforms of each image, and the format of the result.

    Attributes:
        channels: 3 or 1.
        is_chw: Whether channels are the first dimension of the result.
        height: The number of rows of the result.
        width: Its number of columns.
        fitted: What brings images to the requested size before all transforms, if one is requested.
        geometry: The geometric transforms, which come next, each with its index in the request.
        painting: The transforms of pixels, which come next, each with its index.
        table: ``(channels, 256)``: the final value of each pixel value, as bits for bfloat16; None
            for no change.
        finish: The transforms of final values, each with its index.
        element_type: The type of the result's elements.
    """

    channels: int
    is_chw: bool
    height: int
    width: int
    fitted: Fitted | None
    geometry: tuple[tuple[int, Geometry], ...]
    painting: tuple[tuple[int, Painting], ...]
    table: NDArray[np.generic] | None
    finish: tuple[tuple[int, Painting], ...]
    element_type: pb.ElementType

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the shape of the result for one image."""
        if self.is_chw:
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels

    @property
    def image_bytes(self) -> int:
        """Return the memory that making one image takes besides, once it is decoded, in bytes."""
        size = self.height * self.width * self.channels
        # Floats for each pixel, a few rows at a time.
        return size * (64 if self.painting or self.finish else 8)

    def draws(self, keys: NDArray[np.uint64], stage: int) -> ImageDraws:
        """Return the random draws for images.

        Args:
            keys: ``(images,)``: the samples' keys in the order.
            stage: The stage's index in the request.
        """
        return {
            place: draws_of(keys, stage=stage, place=place, count=each.draw_count)
            for place, each in self._drawing()
            if each.draw_count
        }

    def least_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the size below which an image must not be reduced while it is decoded.

        Args:
            height: The height of the image, upright.
            width: The width of the image.
        """
        if self.fitted is None:
            return height, width
        frame = self.fitted.apply(frame_of_size(height, width), ())
        rows, columns = (
            math.ceil(_REDUCING_GAP * whole * scaled / part)
            for whole, scaled, part in zip((height, width), frame.size, frame.box[2:], strict=True)
        )
        return min(height, rows), min(width, columns)

    def _fitted(self, frame: Frame) -> Frame:
        return frame if self.fitted is None else self.fitted.apply(frame, ())

    def _drawing(self) -> Iterator[tuple[int, Geometry | Painting]]:
        yield from self.geometry
        yield from self.painting
        yield from self.finish

    def place(self, height: int, width: int, draws: ImageDraws, row: int) -> Frame:
        """Return the frame of an image of a given size, for the columns that follow it.

        Args:
            height: The height of the image, upright.
            width: The width of the image.
            draws: The random draws of the batch.
            row: The row of the image in the batch.
        """
        frame = self._fitted(frame_of_size(height, width))
        flips = [
            (place, each)
            for place, each in (*self.painting, *self.finish)
            if isinstance(each, RandomFlip)
        ]
        for place, transform in (*self.geometry, *flips):
            found = draws[place][row].tolist() if place in draws else []
            frame = transform.apply(frame, found)
        return frame

    def make(
        self, pixels: NDArray[np.uint8], draws: ImageDraws, row: int, out: NDArray[np.generic]
    ) -> None:
        """Make an image.

        Args:
            pixels: ``(height, width, 4) uint8`` or ``(height, width, 1) uint8``, as decoded.
            draws: The random draws of the batch.
            row: The row of the image in the batch.
            out: The target, of `shape`, contiguous, for bfloat16 its bits; it is written once and
                not read, since others may write to it.
        """

        def drawn(place: int) -> list[float]:
            found: list[float] = draws[place][row].tolist() if place in draws else []
            return found

        frame = self._fitted(frame_of(pixels))
        for place, transform in self.geometry:
            frame = transform.apply(frame, drawn(place))
        is_direct = self.table is None and not self.is_chw and not self.painting
        size = (self.height, self.width, self.channels)
        painted = out.view(np.uint8) if is_direct else np.empty(size, np.uint8)
        frame.paint(painted)
        for place, paint in self.painting:
            paint.paint(painted, drawn(place))
        if is_direct:
            return
        made = np.empty(out.shape, out.dtype) if self.finish else out
        map_levels(painted, self.table, made, is_chw=self.is_chw)
        target = made.transpose(1, 2, 0) if self.is_chw else made
        for place, paint in self.finish:
            paint.paint(target, drawn(place))
        if made is not out:
            out[...] = made


ImageDraws = dict[int, NDArray[np.float64]]
"""By the transform's index: ``(images, draws)``."""


def recipe_of(message: images_pb.DecodeImage) -> Recipe:
    """Read the transforms of images from a request.

    Raises:
        BadArgumentError: The request is invalid.
    """
    channels = message.channels or 3
    _check(channels in {1, 3}, f"channels is {channels}; it must be 1 or 3")
    _check(
        message.layout in images_pb.ImageLayout.values(),
        f"layout is {message.layout}, which is not an ImageLayout",
    )
    _check(
        message.on_error in images_pb.OnError.values(),
        f"on_error is {message.on_error}, which is not an ImageErrors",
    )
    _check(
        len(message.transforms) <= MOST_TRANSFORMS,
        f"there are {len(message.transforms)} transforms; there must be at most {MOST_TRANSFORMS}",
    )
    fitted = _fitted_of(message)
    read = _Reader(channels, fitted)
    for place, transform in enumerate(message.transforms):
        read.add(place, transform)
    if read.size is None:
        raise refusal(
            "the images do not all have the same size at the end; give height and width, or end "
            "transforms with RandomResizedCrop, CenterCrop, or Resize to a height and a width"
        )
    return Recipe(
        channels=channels,
        is_chw=message.layout == images_pb.IMAGE_LAYOUT_CHW,
        height=read.size[0],
        width=read.size[1],
        fitted=fitted,
        geometry=tuple(read.geometry),
        painting=tuple(read.painting),
        table=read.table,
        finish=tuple(read.finish),
        element_type=read.element_type,
    )


def _fitted_of(message: images_pb.DecodeImage) -> Fitted | None:
    if not (message.height or message.width):
        _check(not message.fit, "fit needs a height and a width")
        return None
    _check(
        message.fit in images_pb.ImageFit.values(),
        f"fit is {message.fit}, which is not an ImageFit",
    )
    return _FITS[message.fit](*_sides("the image", message.height, message.width))


class _Reader:
    """Read one transform after the other."""

    def __init__(self, channels: int, fitted: Fitted | None) -> None:
        self._channels = channels
        self._is_cut = fitted is not None
        self.size: Size = None if fitted is None else fitted.size(None)
        self.geometry: list[tuple[int, Geometry]] = []
        self.painting: list[tuple[int, Painting]] = []
        self.finish: list[tuple[int, Painting]] = []
        self.table: NDArray[np.generic] | None = None
        self.element_type: pb.ElementType = pb.ELEMENT_TYPE_UINT8

    def add(self, place: int, message: images_pb.ImageTransform) -> None:
        kind = message.WhichOneof("transform")
        if kind is None:
            raise refusal(f"transforms[{place}] is unknown to this server; use a newer server")
        if kind == "normalize":
            self._normalize(place, message.normalize)
            return
        made = _made(kind, message, self._channels, is_float=self.table is not None)
        if self.element_type == pb.ELEMENT_TYPE_BFLOAT16 and isinstance(made, RandomErasing):
            value = bfloat16_bits(np.array(made.value, np.float32))
            made = replace(made, value=tuple(value.tolist()))
        if isinstance(made, ColorJitter | RandomErasing):
            _check(
                self.size is not None,
                f"transforms[{place}], {kind}, comes where images differ in size; put it after the "
                "transform that gives all of them the same size",
            )
            _check(
                self.table is None or isinstance(made, RandomErasing),
                f"transforms[{place}], {kind}, comes after normalize; put it before",
            )
            (self.painting if self.table is None else self.finish).append((place, made))
        elif isinstance(made, RandomFlip) and (self.painting or self.table is not None):
            (self.painting if self.table is None else self.finish).append((place, made))
        else:
            _check(
                not self.painting and self.table is None,
                f"transforms[{place}], {kind}, comes after one that changes pixels; put it before",
            )
            _check(
                isinstance(made, RandomFlip | CenterCrop) or not self._is_cut,
                f"transforms[{place}], {kind}, scales an image that was already scaled or cropped; "
                "scale once, then crop",
            )
            self._is_cut |= not isinstance(made, RandomFlip)
            self.geometry.append((place, made))
            self.size = made.size(self.size)

    def _normalize(self, place: int, message: images_pb.Normalize) -> None:
        _check(
            self.size is not None and self.table is None,
            f"transforms[{place}], normalize, must come once, after the transform that gives all "
            "images the same size",
        )
        for field, found in (("mean", message.mean), ("std", message.std)):
            _check(
                len(found) == self._channels and all(map(math.isfinite, found)),
                f"transforms[{place}], normalize: {field} is {list(found)}; it must be "
                f"{self._channels} numbers, one for each channel",
            )
        _check(
            all(np.float32(each) != 0 for each in message.std),
            f"transforms[{place}], normalize: std is {list(message.std)}; it must not contain 0",
        )
        if message.element_type not in _FLOATS:
            raise refusal(
                f"transforms[{place}], normalize: dtype must be float32, float16 or bfloat16"
            )
        self.element_type = _FLOATS[message.element_type]
        self.table = _table(message.mean, message.std, self.element_type)


def _table(
    mean: Sequence[float], std: Sequence[float], element_type: pb.ElementType
) -> NDArray[np.generic]:
    pixels = np.arange(256, dtype=np.float32) / np.float32(255)
    means, deviations = (np.array(each, np.float32)[:, None] for each in (mean, std))
    with np.errstate(over="ignore"):
        table: NDArray[np.float32] = (pixels - means) / deviations
        if element_type == pb.ELEMENT_TYPE_BFLOAT16:
            return bfloat16_bits(table)
        return table.astype("<f2" if element_type == pb.ELEMENT_TYPE_FLOAT16 else "<f4")


def _made(
    kind: str, message: images_pb.ImageTransform, channels: int, *, is_float: bool
) -> Geometry | ColorJitter | RandomErasing:
    if kind == "resize":
        return _resize(message.resize)
    if kind == "center_crop":
        return CenterCrop(*_sides(kind, message.center_crop.height, message.center_crop.width))
    if kind == "random_resized_crop":
        crop = message.random_resized_crop
        sides = _sides(kind, crop.height, crop.width)
        return RandomResizedCrop(*sides, _scale(kind, crop), _ratio(kind, crop))
    if kind in {"random_horizontal_flip", "random_vertical_flip"}:
        share = _share(kind, getattr(message, kind).p)
        return RandomFlip(share, rows=kind == "random_vertical_flip")
    if kind == "color_jitter":
        jitter = message.color_jitter
        return ColorJitter(
            _range(kind, "brightness", jitter.brightness, 0.0, math.inf),
            _range(kind, "contrast", jitter.contrast, 0.0, math.inf),
            _range(kind, "saturation", jitter.saturation, 0.0, math.inf),
            _range(kind, "hue", jitter.hue, -0.5, 0.5),
        )
    erasing = message.random_erasing
    value = _value(erasing.value, channels, is_float=is_float)
    share = _share(kind, erasing.p)
    return RandomErasing(share, _scale(kind, erasing), _ratio(kind, erasing), value)


def _resize(message: images_pb.Resize) -> Resize | ResizeShorter:
    size = tuple(message.size)
    _check(
        len(size) in {1, 2} and all(1 <= each <= _SIDE_LIMIT for each in size),
        f"resize: size is {size}; it must be one or two numbers in [1, {_SIDE_LIMIT}]",
    )
    if len(size) > 1:
        _check(not message.max_size, "resize: max_size needs a size of one number")
        return Resize(*size)
    _check(
        message.max_size == 0 or size[0] < message.max_size <= _SIDE_LIMIT,
        f"resize: max_size is {message.max_size}; it must be in ({size[0]}, {_SIDE_LIMIT}]",
    )
    return ResizeShorter(size[0], message.max_size)


def _sides(kind: str, height: int, width: int) -> tuple[int, int]:
    _check(
        1 <= height <= _SIDE_LIMIT and 1 <= width <= _SIDE_LIMIT,
        f"{kind}: the size is {height} x {width}; both must be in [1, {_SIDE_LIMIT}]",
    )
    return height, width


def _scale(kind: str, message: images_pb.RandomResizedCrop | images_pb.RandomErasing) -> Range:
    low, high = message.least_scale, message.greatest_scale
    _check(
        0 < low <= high <= 1, f"{kind}: scale is ({low}, {high}); it must increase within (0, 1]"
    )
    return low, high


def _ratio(kind: str, message: images_pb.RandomResizedCrop | images_pb.RandomErasing) -> Range:
    low, high = message.least_ratio, message.greatest_ratio
    _check(
        1 / _RATIO_LIMIT <= low <= high <= _RATIO_LIMIT,
        f"{kind}: ratio is ({low}, {high}); it must increase within [1/64, 64]",
    )
    return low, high


def _share(kind: str, p: float) -> float:
    _check(0 <= p <= 1, f"{kind}: p is {p}; it must be in [0, 1]")
    return p


def _range(
    kind: str, field: str, found: Sequence[float], least: float, greatest: float
) -> Range | None:
    if not found:
        return None
    _check(
        len(found) == 2  # noqa: PLR2004 - the ends of a range
        and least <= found[0] <= found[1] <= greatest
        and math.isfinite(found[1]),
        f"{kind}: {field} is {list(found)}; it must be two increasing numbers in [{least:g}, "
        f"{greatest:g}]",
    )
    return found[0], found[1]


def _value(found: Sequence[float], channels: int, *, is_float: bool) -> tuple[float, ...]:
    _check(
        len(found) in {1, channels} and all(map(math.isfinite, found)),
        f"random_erasing: value is {list(found)}; it must be one number, or {channels}",
    )
    _check(
        is_float or all(each == int(each) and 0 <= each <= 255 for each in found),  # noqa: PLR2004
        f"random_erasing: value is {list(found)}; before normalize it must be whole numbers in [0, "
        "255]",
    )
    return tuple(found)


def _check(is_right: bool, why: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not is_right:
        raise refusal(why)


def refusal(why: str) -> BadArgumentError:
    """Return the error for a stage of images that cannot be done."""
    return BadArgumentError(f"decode_image: {why}", field="stages")


def draws_of(keys: NDArray[np.uint64], *, stage: int, place: int, count: int) -> Draws:
    """Return the draws of one transform, for all images of a batch at once.

    docs/augmentation.md specifies them. They depend only on a sample's key, which comes from the
    order, and on the places of the stage and the transform.

    Args:
        keys: ``(images,)``: the samples' keys in the order.
        stage: The stage's index in the request.
        place: The transform's index in the stage.
        count: The number of draws per image.
    """
    return uniform_draws(transform_keys(keys, stage, place), count)
