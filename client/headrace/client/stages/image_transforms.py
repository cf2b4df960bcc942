"""What the server does with each image: the transforms of `DecodeImage`.

Names, parameters and defaults are those of torchvision.transforms.v2. docs/augmentation.md has the
arithmetic, and says how random numbers are drawn.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headrace.arguments import number, one_of, shown, text, whole, whole_or_none
from headrace.client.options.stage import StagePart
from headrace.errors import BadArgumentError
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

_SIDE_LIMIT = (1 << 14) + 1
_LEAST_RATIO, _GREATEST_RATIO = 1 / 64, 64.0
_FLOATS = {
    "float16": pb.ELEMENT_TYPE_FLOAT16,
    "bfloat16": pb.ELEMENT_TYPE_BFLOAT16,
    "float32": pb.ELEMENT_TYPE_FLOAT32,
}
_BOX_FORMATS = {
    "XYXY": images_pb.BOX_FORMAT_XYXY,
    "XYWH": images_pb.BOX_FORMAT_XYWH,
    "CXCYWH": images_pb.BOX_FORMAT_CXCYWH,
}


class ImageTransform(StagePart, ABC):
    """One transform of each image."""

    __slots__ = ()
    whole = "DecodeImage(…, transforms=[{}(…)])"

    @abstractmethod
    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""


@dataclass(frozen=True, slots=True)
class Resize(ImageTransform):
    """Scale an image, antialiased.

    Attributes:
        size: ``(height, width)``; or one number for the shorter side, which keeps proportions.
        max_size: Maximum length of the longer side, if `size` is one number.
    """

    size: int | tuple[int, ...]
    max_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        _set(self, size=_size("Resize.size", self.size))
        whole_or_none("Resize.max_size", self.max_size, low=1, high=_SIDE_LIMIT)

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        return images_pb.ImageTransform(
            resize=images_pb.Resize(size=_tuple(self.size), max_size=self.max_size)
        )


@dataclass(frozen=True, slots=True)
class CenterCrop(ImageTransform):
    """Keep the middle of an image; a smaller image is padded with zeros.

    Attributes:
        size: ``(height, width)``, or one number for both.
    """

    size: int | tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        _set(self, size=_size("CenterCrop.size", self.size))

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        height, width = _pair(self.size)
        return images_pb.ImageTransform(
            center_crop=images_pb.CenterCrop(height=height, width=width)
        )


@dataclass(frozen=True, slots=True)
class RandomResizedCrop(ImageTransform):
    """Keep a random part of an image, and scale it, antialiased.

    Attributes:
        size: ``(height, width)``, or one number for both.
        scale: Bounds of the part's area, as a share of the image's.
        ratio: Bounds of its width over its height.
    """

    size: int | tuple[int, ...]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        _set(
            self,
            size=_size("RandomResizedCrop.size", self.size),
            scale=_scale("RandomResizedCrop", self.scale),
            ratio=_ratio("RandomResizedCrop", self.ratio),
        )

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        height, width = _pair(self.size)
        return images_pb.ImageTransform(
            random_resized_crop=images_pb.RandomResizedCrop(
                height=height, width=width, **_bounds(self.scale, self.ratio)
            )
        )


@dataclass(frozen=True, slots=True)
class _Flip(ImageTransform):
    p: float = 0.5

    def __post_init__(self) -> None:
        """Refuse numbers that are not a probability."""
        _set(self, p=number(f"{type(self).__name__}.p", self.p, least=0, most=1))


@dataclass(frozen=True, slots=True)
class RandomHorizontalFlip(_Flip):
    """Swap left and right.

    Attributes:
        p: The probability.
    """

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        flip = images_pb.RandomHorizontalFlip(p=self.p)
        return images_pb.ImageTransform(random_horizontal_flip=flip)


@dataclass(frozen=True, slots=True)
class RandomVerticalFlip(_Flip):
    """Swap top and bottom.

    Attributes:
        p: The probability.
    """

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        return images_pb.ImageTransform(random_vertical_flip=images_pb.RandomVerticalFlip(p=self.p))


@dataclass(frozen=True, slots=True)
class ColorJitter(ImageTransform):
    """Change brightness, contrast, saturation and hue in a random order, each by a random factor.

    Attributes:
        brightness: Bounds of the factor; one number b stands for ``(max(0, 1 - b), 1 + b)``, and
            0 for no change.
        contrast: Bounds of the factor for contrast, in the same form.
        saturation: Bounds of the factor for saturation, in the same form.
        hue: Bounds of the shift, in turns, in [-0.5, 0.5]; one number h for ``(-h, h)``.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        for name in ("brightness", "contrast", "saturation", "hue"):
            field, given = f"ColorJitter.{name}", getattr(self, name)
            if name == "hue":
                low, high, middle = -0.5, 0.5, 0.0
            else:
                low, high, middle = 0.0, float("inf"), 1.0
            if isinstance(given, Iterable):
                found = _range(field, given, low, high)
            else:
                spread = number(field, given, least=0.0, most=high)
                found = (max(low, middle - spread), middle + spread)
            _set(self, **{name: found})

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        ranges: dict[str, Any] = {}
        for name in ("brightness", "contrast", "saturation", "hue"):
            middle = 0.0 if name == "hue" else 1.0
            found = getattr(self, name)
            ranges[name] = () if found == (middle, middle) else found
        return images_pb.ImageTransform(color_jitter=images_pb.ColorJitter(**ranges))


@dataclass(frozen=True, slots=True)
class RandomErasing(ImageTransform):
    """Overwrite a random part of an image.

    Attributes:
        p: The probability.
        scale: Bounds of the part's area, as a share of the image's.
        ratio: Bounds of its height over its width.
        value: The value to write: one number, or one per channel.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] = 0.0

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        _set(
            self,
            p=number("RandomErasing.p", self.p, least=0, most=1),
            scale=_scale("RandomErasing", self.scale),
            ratio=_ratio("RandomErasing", self.ratio),
            value=_numbers("RandomErasing.value", self.value),
        )

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        bounds = _bounds(self.scale, self.ratio)
        return images_pb.ImageTransform(
            random_erasing=images_pb.RandomErasing(p=self.p, value=_tuple(self.value), **bounds)
        )


@dataclass(frozen=True, slots=True)
class Normalize(ImageTransform):
    """Divide pixels by 255, subtract the mean and divide by the deviation.

    It is torchvision's ``ToDtype(torch.float32, scale=True)`` and ``Normalize`` together.

    Attributes:
        mean: One value for each channel.
        std: One value for each channel.
        dtype: The type of the results, which are rounded to it. NumPy has no ``bfloat16``:
            `NumpyDataset` gives its bits as uint16.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Literal["float16", "bfloat16", "float32"] = "float32"

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        _set(
            self,
            mean=_tuple(_numbers("Normalize.mean", self.mean)),
            std=_tuple(_numbers("Normalize.std", self.std)),
        )
        one_of("Normalize.dtype", self.dtype, tuple(_FLOATS))

    def to_message(self) -> images_pb.ImageTransform:
        """Write the transform down for the wire."""
        return images_pb.ImageTransform(
            normalize=images_pb.Normalize(
                mean=self.mean, std=self.std, element_type=_FLOATS[self.dtype]
            )
        )


@dataclass(frozen=True, slots=True)
class Boxes:
    """Bounding boxes that follow their image, clipped to the result.

    Attributes:
        column: The column: lists of numbers, four for each box, in the image's pixels.
        format: The meaning of the numbers, as in torchvision's `BoundingBoxFormat`: ``XYXY`` (left,
            top, right, bottom), ``XYWH`` (left, top, width, height) or ``CXCYWH`` (centre, width,
            height).
        labels: A column of lists with one element per box, or several such columns.
        min_size: Boxes narrower or lower than this, in pixels, are left out, with their labels; 0
            keeps all.
    """

    column: str
    format: Literal["XYXY", "XYWH", "CXCYWH"] = "XYXY"
    labels: str | Sequence[str] = ()
    min_size: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Boxes.column", self.column, wanted="the name of a column")
        one_of("Boxes.format", self.format, tuple(_BOX_FORMATS))
        labels = names_of("Boxes.labels", self.labels)
        _set(self, labels=labels, min_size=number("Boxes.min_size", self.min_size, least=0))

    def to_message(self) -> images_pb.Boxes:
        """Write it down for the wire."""
        return images_pb.Boxes(
            column=self.column,
            format=_BOX_FORMATS[self.format],
            labels=names_of("Boxes.labels", self.labels),
            min_size=self.min_size,
        )


def image_transforms_of(transforms: object) -> tuple[ImageTransform, ...]:
    """Return the transforms that an argument means, in order.

    Raises:
        BadArgumentError: The argument is a single transform, or an element is not a transform.
    """
    wanted = "a list of transforms, such as [RandomResizedCrop(224)]"
    if isinstance(transforms, ImageTransform | str) or not isinstance(transforms, Iterable):
        raise BadArgumentError(
            f"DecodeImage.transforms is {shown(transforms)}; expected {wanted}", field="stages"
        )
    found = tuple(transforms)
    for at, each in enumerate(found):
        if not isinstance(each, ImageTransform):
            raise BadArgumentError(
                f"DecodeImage.transforms[{at}] is {shown(each)}, of type {type(each).__name__}; "
                f"expected {wanted}, of headrace.client",
                field="stages",
            )
    return found


def names_of(field: str, given: object) -> tuple[str, ...]:
    """Return the columns that an argument names: one, or several.

    Raises:
        BadArgumentError: The argument names no column.
    """
    if isinstance(given, str):
        return (text(field, given, wanted="the name of a column"),)
    if not isinstance(given, Iterable):
        raise BadArgumentError(
            f"{field} is {shown(given)}; expected names of columns", field="stages"
        )
    return tuple(
        text(f"{field}[{at}]", each, wanted="the name of a column") for at, each in enumerate(given)
    )


def boxes_of(given: object) -> tuple[Boxes, ...]:
    """Return the boxes that an argument means.

    Raises:
        BadArgumentError: An element is not a `Boxes`.
    """
    if isinstance(given, Boxes):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    for each in found:
        if not isinstance(each, Boxes):
            raise BadArgumentError(
                f"DecodeImage.boxes is {shown(given)}; expected Boxes('boxes', format='XYXY'), or "
                "several of them",
                field="stages",
            )
    return found


def _set(transform: object, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(transform, name, value)


def _size(field: str, given: object) -> int | tuple[int, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return whole(field, given, low=1, high=_SIDE_LIMIT)
    found = tuple(
        whole(f"{field}[{at}]", each, low=1, high=_SIDE_LIMIT) for at, each in enumerate(given)
    )
    if len(found) not in {1, 2}:
        raise BadArgumentError(
            f"{field} is {shown(given)}; expected one number, or height and width", field="stages"
        )
    return found


def _tuple(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)


def _pair(size: int | tuple[int, ...]) -> tuple[int, int]:
    found = _tuple(size)
    return found[0], found[-1]


def _numbers(field: str, given: object) -> float | tuple[float, ...]:
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return number(field, given)
    return tuple(number(f"{field}[{at}]", each) for at, each in enumerate(given))


def _range(field: str, given: object, low: float, high: float) -> tuple[float, float]:
    ends = given if isinstance(given, Iterable) else ()
    found = tuple(
        number(f"{field}[{at}]", each, least=low, most=high) for at, each in enumerate(ends)
    )
    if len(found) != 2 or found[0] > found[1]:  # noqa: PLR2004 - the ends of a range
        raise BadArgumentError(
            f"{field} is {shown(given)}; expected two numbers, the smaller one first",
            field="stages",
        )
    return found[0], found[1]


def _scale(transform: str, given: object) -> tuple[float, float]:
    found = _range(f"{transform}.scale", given, 0.0, 1.0)
    number(f"{transform}.scale[0]", found[0], above=0.0)
    return found


def _ratio(transform: str, given: object) -> tuple[float, float]:
    return _range(f"{transform}.ratio", given, _LEAST_RATIO, _GREATEST_RATIO)


def _bounds(scale: tuple[float, float], ratio: tuple[float, float]) -> dict[str, Any]:
    return {
        "least_scale": scale[0],
        "greatest_scale": scale[1],
        "least_ratio": ratio[0],
        "greatest_ratio": ratio[1],
    }
