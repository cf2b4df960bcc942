"""What a server does with each batch before it sends it; docs/protocol.md has the arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from headrace.arguments import flag, instance, number, one_of, shown, text, whole
from headrace.client.options.images import ImageTransform, image_transforms_of
from headrace.errors import BadArgumentError
from headrace.order import images_title
from headrace.v1 import shard_service_pb2 as pb

_TYPES = {
    "bool": pb.ELEMENT_TYPE_BOOL,
    "int8": pb.ELEMENT_TYPE_INT8,
    "int16": pb.ELEMENT_TYPE_INT16,
    "int32": pb.ELEMENT_TYPE_INT32,
    "int64": pb.ELEMENT_TYPE_INT64,
    "uint8": pb.ELEMENT_TYPE_UINT8,
    "uint16": pb.ELEMENT_TYPE_UINT16,
    "uint32": pb.ELEMENT_TYPE_UINT32,
    "uint64": pb.ELEMENT_TYPE_UINT64,
    "float16": pb.ELEMENT_TYPE_FLOAT16,
    "float32": pb.ELEMENT_TYPE_FLOAT32,
    "float64": pb.ELEMENT_TYPE_FLOAT64,
}
_COLUMN = "the name of a column"
_LENGTH_LIMIT = 1 << 31
_FITS = {
    "cover": pb.IMAGE_FIT_COVER,
    "contain": pb.IMAGE_FIT_CONTAIN,
    "stretch": pb.IMAGE_FIT_STRETCH,
}
_LAYOUTS = {"HWC": pb.IMAGE_LAYOUT_HWC, "CHW": pb.IMAGE_LAYOUT_CHW}


@dataclass(frozen=True, slots=True)
class Cast:
    """Make a column's numbers numbers of another type, such as ``float16``.

    Attributes:
        column: The column.
        dtype: Name of the type as NumPy has it; ``bool`` too. A number that it cannot hold is an
            error, but for the rounding of floating point.
    """

    column: str
    dtype: str

    def __post_init__(self) -> None:
        """Refuse what is no column, or no type."""
        text("Cast.column", self.column, wanted=_COLUMN)
        one_of("Cast.dtype", self.dtype, tuple(_TYPES))

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(cast=pb.Cast(column=self.column, element_type=_TYPES[self.dtype]))


@dataclass(frozen=True, slots=True)
class Pad:
    """Make a ragged column a tensor, with a column ``<column>.length`` beside it.

    Attributes:
        column: The column.
        length: Elements of a row, >= 1.
        fill: What fills a row up.
        truncate: Whether longer rows are cut; else one is an error.
    """

    column: str
    length: int
    fill: float = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        """Refuse what no server could do."""
        text("Pad.column", self.column, wanted=_COLUMN)
        _set_whole(self, "length")
        number("Pad.fill", self.fill)
        flag("Pad.truncate", self.truncate)

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(
            pad=pb.Pad(
                column=self.column, length=self.length, fill=self.fill, truncate=self.truncate
            )
        )


@dataclass(frozen=True, slots=True)
class Stack:
    """Make a ragged column, all of whose rows have one length, a tensor.

    Attributes:
        column: The column.
        item_shape: The shape of a row.
    """

    column: str
    item_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse what no server could do."""
        text("Stack.column", self.column, wanted=_COLUMN)
        shape: object = self.item_shape
        if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise BadArgumentError(
                f"Stack.item_shape is {shown(shape)}; expected the lengths of a row's sides, such "
                "as (3, 224)",
                field="steps",
            )
        sides = [
            whole(f"Stack.item_shape[{at}]", side, low=0, high=_LENGTH_LIMIT)
            for at, side in enumerate(shape)
        ]
        object.__setattr__(self, "item_shape", tuple(sides))

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(stack=pb.Stack(column=self.column, item_shape=self.item_shape))


@dataclass(frozen=True, slots=True)
class DecodeImage:
    """Make a column of files of images a tensor ``(samples, height, width, channels)``.

    With `transforms` each JPEG, PNG, WebP or AVIF is decoded whole, turned as it says, and goes
    through them, as in ``DecodeImage("image", transforms=[RandomResizedCrop(224)])``. Without them
    JPEG and PNG are decoded no larger than need be and made `height` x `width`, which takes less
    time and gives slightly other pixels.

    Attributes:
        column: The column.
        height: Rows of pixels; not with `transforms`, which say it.
        width: Pixels of a row; not with `transforms`.
        channels: 3 for red, green and blue, 1 for luminance.
        fit: Scaled to ``cover`` the size and cut to its middle, to lie within it amid zeros
            (``contain``), or to the size, its proportions lost (``stretch``).
        transforms: What is done to each image, in this order: `Resize`, `CenterCrop`,
            `RandomResizedCrop`, `RandomHorizontalFlip`, `RandomVerticalFlip`, `ColorJitter`,
            `RandomErasing` and `Normalize`.
        layout: ``CHW`` puts channels first, with `transforms` alone.
    """

    column: str
    height: int | None = None
    width: int | None = None
    channels: Literal[1, 3] = 3
    fit: Literal["cover", "contain", "stretch"] = "cover"
    transforms: Sequence[ImageTransform] = ()
    layout: Literal["HWC", "CHW"] = "HWC"

    def __post_init__(self) -> None:
        """Refuse what no server could do."""
        text("DecodeImage.column", self.column, wanted=_COLUMN)
        object.__setattr__(self, "transforms", image_transforms_of(self.transforms))
        _set_whole(self, "channels")
        if self.channels not in (1, 3):
            raise BadArgumentError(
                f"DecodeImage.channels is {self.channels}; expected 3 for colours, or 1",
                field="steps",
            )
        one_of("DecodeImage.fit", self.fit, tuple(_FITS))
        one_of("DecodeImage.layout", self.layout, tuple(_LAYOUTS))
        if not self.transforms:
            for name in ("height", "width"):
                _set_whole(self, name)
        elif self.height is not None or self.width is not None or self.fit != "cover":
            raise BadArgumentError(
                "DecodeImage has transforms, and height, width or fit beside them; give the size "
                "to a transform, such as Resize((224, 224))",
                field="steps",
            )
        if self.layout != "HWC" and not self.transforms:
            raise BadArgumentError(
                f"DecodeImage.layout is {self.layout!r} without transforms; give "
                "transforms=[Resize(...)] instead of height and width",
                field="steps",
            )

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        if self.transforms:
            return pb.BatchStep(
                decode_image=pb.DecodeImage(
                    column=self.column,
                    channels=self.channels,
                    transforms=[each.to_message() for each in self.transforms],
                    layout=_LAYOUTS[self.layout],
                )
            )
        return pb.BatchStep(
            decode_image=pb.DecodeImage(
                column=self.column,
                height=self.height,
                width=self.width,
                channels=self.channels,
                fit=_FITS[self.fit],
            )
        )


@dataclass(frozen=True, slots=True)
class Pack:
    """Pack the rows of a ragged column, the documents, into rows of one length.

    The batch then holds the column, a tensor ``(row_count, length)``; ``<column>.boundaries``,
    where each document of a row begins and the last one ends; ``<column>.sample``, which sample
    of the batch each document is; and nothing else. `Batch.overflow_count` samples found no room.

    Attributes:
        column: The column.
        row_count: Rows of each rank's batch.
        length: Elements of a row; longer documents are cut.
        fill: What fills a row up.
    """

    column: str
    row_count: int
    length: int
    fill: float = 0

    def __post_init__(self) -> None:
        """Refuse what no server could do."""
        text("Pack.column", self.column, wanted=_COLUMN)
        for name in ("row_count", "length"):
            _set_whole(self, name)
        number("Pack.fill", self.fill)

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(
            pack=pb.Pack(
                column=self.column, row_count=self.row_count, length=self.length, fill=self.fill
            )
        )


@dataclass(frozen=True, slots=True)
class Transform:
    """Call a function that the server's operator has registered, over all columns.

    Its name and version are in tokens: a run goes on with the same ones alone.

    Attributes:
        name: Its name on the server.
        version: Its version; empty for the server's.
    """

    name: str
    version: str = ""

    def __post_init__(self) -> None:
        """Refuse what no server could do."""
        text("Transform.name", self.name, wanted="the name that the operator gave it")
        instance("Transform.version", self.version, str, wanted="a str")

    def to_message(self) -> pb.BatchStep:
        """Write the step down for the wire."""
        return pb.BatchStep(transform=pb.Transform(name=self.name, version=self.version))


Step = Transform | Cast | Pad | Stack | DecodeImage | Pack


def steps_of(steps: object) -> tuple[Step, ...]:
    """Return the steps that an argument means, in order.

    Raises:
        BadArgumentError: It is one step, or something in it is none.
    """
    wanted = "a list of steps, such as [Cast('label', 'int64')]"
    if isinstance(steps, Step | str | Mapping | AbstractSet) or not isinstance(steps, Iterable):
        raise BadArgumentError(
            f"steps is {shown(steps)}, of type {type(steps).__name__}; expected {wanted}",
            field="steps",
        )
    found = tuple(steps)
    for at, step in enumerate(found):
        if not isinstance(step, Step):
            raise BadArgumentError(
                f"steps[{at}] is {shown(step)}, of type {type(step).__name__}; expected {wanted}"
                + (". A function of your own goes to transform=" if callable(step) else ""),
                field="steps",
            )
    return found


def _set_whole(step: Step, name: str) -> None:
    field = f"{type(step).__name__}.{name}"
    object.__setattr__(step, name, whole(field, getattr(step, name), low=1, high=_LENGTH_LIMIT))


def transforms_text(steps: Sequence[Step]) -> str:
    """Return what a token says of transforms.

    Raises:
        BadArgumentError: The version of one is left to the server, so it is not known here.
    """
    found = [step for step in steps if isinstance(step, Transform)]
    for step in found:
        if not step.version:
            raise BadArgumentError(
                f"the version of the transform {step.name!r} is left to the server, so no state "
                "can be made before the first batch; give its version, or take the state later",
                field="steps",
            )
    titles = [f"{step.name}@{step.version}" for step in found]
    # Which decoder it will be is the server's to say, with the first batch.
    images = images_title(
        (place, step.to_message().decode_image.SerializeToString(deterministic=True))
        for place, step in enumerate(steps)
        if isinstance(step, DecodeImage) and step.transforms
    )
    return ",".join([*titles, *([images] if images else [])])
