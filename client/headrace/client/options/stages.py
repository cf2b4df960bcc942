"""What a server does with each batch before it sends it; docs/protocol.md has the arithmetic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from headrace.arguments import flag, instance, number, one_of, shown, text, whole
from headrace.client.options.images import (
    Boxes,
    ImageTransform,
    boxes_of,
    image_transforms_of,
    names_of,
)
from headrace.client.options.mixing import CutMix, MixUp, OneHot
from headrace.errors import BadArgumentError
from headrace.order import TOKENIZER, images_title, tokenizer_version
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import image_stage

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
_DIGEST = re.compile("[0-9a-f]{32}")
_LENGTH_LIMIT = 1 << 31
_FITS = {
    "cover": pb.IMAGE_FIT_COVER,
    "contain": pb.IMAGE_FIT_CONTAIN,
    "stretch": pb.IMAGE_FIT_STRETCH,
}
_LAYOUTS = {"HWC": pb.IMAGE_LAYOUT_HWC, "CHW": pb.IMAGE_LAYOUT_CHW}
# The default is left out, so tokens are the same as before this option existed.
_ON_ERROR = {"raise": pb.ON_ERROR_UNSPECIFIED, "skip": pb.ON_ERROR_SKIP}


@dataclass(frozen=True, slots=True)
class Cast:
    """Cast the numbers of a column to another type, such as ``float16``.

    Attributes:
        column: The column.
        dtype: NumPy's name of the type, or ``bool``. A number that does not fit is an error;
            floating-point numbers are rounded.
    """

    column: str
    dtype: str

    def __post_init__(self) -> None:
        """Refuse values that are not a column, or not a type."""
        text("Cast.column", self.column, wanted=_COLUMN)
        one_of("Cast.dtype", self.dtype, tuple(_TYPES))

    def to_message(self) -> pb.Cast:
        """Write the stage down for the wire."""
        return pb.Cast(column=self.column, element_type=_TYPES[self.dtype])


@dataclass(frozen=True, slots=True)
class Pad:
    """Make a ragged column a tensor, with a second column ``<column>.length``.

    Attributes:
        column: The column.
        length: Elements of a row, >= 1.
        fill: The value to pad with.
        truncate: Whether to cut longer rows; otherwise they are errors.
    """

    column: str
    length: int
    fill: float = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Pad.column", self.column, wanted=_COLUMN)
        _set_whole(self, "length")
        number("Pad.fill", self.fill)
        flag("Pad.truncate", self.truncate)

    def to_message(self) -> pb.Pad:
        """Write the stage down for the wire."""
        return pb.Pad(
            column=self.column, length=self.length, fill=self.fill, truncate=self.truncate
        )


@dataclass(frozen=True, slots=True)
class Stack:
    """Make a ragged column whose rows all have the same length a tensor.

    Attributes:
        column: The column.
        item_shape: The shape of a row.
    """

    column: str
    item_shape: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Stack.column", self.column, wanted=_COLUMN)
        shape: object = self.item_shape
        if isinstance(shape, str | bytes) or not isinstance(shape, Iterable):
            raise BadArgumentError(
                f"Stack.item_shape is {shown(shape)}; expected a row's shape, such as (3, 224)",
                field="stages",
            )
        sides = [
            whole(f"Stack.item_shape[{at}]", side, low=0, high=_LENGTH_LIMIT)
            for at, side in enumerate(shape)
        ]
        object.__setattr__(self, "item_shape", tuple(sides))

    def to_message(self) -> pb.Stack:
        """Write the stage down for the wire."""
        return pb.Stack(column=self.column, item_shape=self.item_shape)


@dataclass(frozen=True, slots=True)
class DecodeImage:
    """Decode a column of image files to a tensor ``(samples, height, width, channels)``.

    With `transforms`, as in ``DecodeImage("image", transforms=[RandomResizedCrop(224)])``, each
    JPEG, PNG, WebP or AVIF is decoded at full size, rotated as its EXIF says, and passes the
    transforms. Without them, JPEG and PNG are decoded no larger than necessary and scaled to
    `height` x `width`, which takes less time and gives slightly different pixels.

    Attributes:
        column: The column.
        height: Height in pixels; not with `transforms`, which determine it.
        width: Width in pixels; not with `transforms`.
        channels: 3 for red, green and blue, 1 for luminance.
        fit: How to scale: to ``cover`` the size and crop to the centre; to fit within it, padded
            with zeros (``contain``); or to the exact size, without keeping proportions
            (``stretch``).
        transforms: The transforms of each image, in this order: `Resize`, `CenterCrop`,
            `RandomResizedCrop`, `RandomHorizontalFlip`, `RandomVerticalFlip`, `ColorJitter`,
            `RandomErasing` and `Normalize`.
        layout: ``CHW`` puts channels first; only with `transforms`.
        on_error: How to treat an image that cannot be decoded, with `transforms`: it fails the
            batch (``raise``), or another sample takes its place, as with ``skips=``, and
            `Batch.damaged_ids` has its id (``skip``).
        masks: Columns of mask files, which are transformed as their images are and become
            ``(samples, height, width) uint8``; only with `transforms`.
        boxes: Bounding boxes that follow the images; only with `transforms`.
        allow_decoder_change: Whether to accept a state of images that other versions of the
            server's image libraries decoded; pixels may differ.
    """

    column: str
    height: int | None = None
    width: int | None = None
    channels: Literal[1, 3] = 3
    fit: Literal["cover", "contain", "stretch"] = "cover"
    transforms: Sequence[ImageTransform] = ()
    layout: Literal["HWC", "CHW"] = "HWC"
    on_error: Literal["raise", "skip"] = "raise"
    masks: str | Sequence[str] = ()
    boxes: Boxes | Sequence[Boxes] = ()
    allow_decoder_change: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("DecodeImage.column", self.column, wanted=_COLUMN)
        object.__setattr__(self, "transforms", image_transforms_of(self.transforms))
        _set_whole(self, "channels")
        if self.channels not in (1, 3):
            raise BadArgumentError(
                f"DecodeImage.channels is {self.channels}; expected 3 for colours, or 1",
                field="stages",
            )
        one_of("DecodeImage.fit", self.fit, tuple(_FITS))
        one_of("DecodeImage.layout", self.layout, tuple(_LAYOUTS))
        one_of("DecodeImage.on_error", self.on_error, tuple(_ON_ERROR))
        if not self.transforms:
            for name in ("height", "width"):
                _set_whole(self, name)
        elif self.height is not None or self.width is not None or self.fit != "cover":
            raise BadArgumentError(
                "DecodeImage has both transforms and height, width or fit; give the size to a "
                "transform, such as Resize((224, 224))",
                field="stages",
            )
        object.__setattr__(self, "masks", names_of("DecodeImage.masks", self.masks))
        object.__setattr__(self, "boxes", boxes_of(self.boxes))
        flag("DecodeImage.allow_decoder_change", self.allow_decoder_change)
        if (self.masks or self.boxes) and not self.transforms:
            raise BadArgumentError(
                "DecodeImage has masks or boxes without transforms; give "
                "transforms=[Resize(...)] instead of height and width",
                field="stages",
            )
        if self.on_error != "raise" and not self.transforms:
            raise BadArgumentError(
                f"DecodeImage.on_error is {self.on_error!r} without transforms; give "
                "transforms=[Resize(...)] instead of height and width",
                field="stages",
            )
        if self.layout != "HWC" and not self.transforms:
            raise BadArgumentError(
                f"DecodeImage.layout is {self.layout!r} without transforms; give "
                "transforms=[Resize(...)] instead of height and width",
                field="stages",
            )

    def to_message(self) -> pb.DecodeImage:
        """Write the stage down for the wire."""
        if self.transforms:
            return pb.DecodeImage(
                column=self.column,
                channels=self.channels,
                transforms=[each.to_message() for each in self.transforms],
                layout=_LAYOUTS[self.layout],
                on_error=_ON_ERROR[self.on_error],
                masks=names_of("DecodeImage.masks", self.masks),
                boxes=[each.to_message() for each in boxes_of(self.boxes)],
                allow_decoder_change=self.allow_decoder_change,
            )
        return pb.DecodeImage(
            column=self.column,
            height=self.height,
            width=self.width,
            channels=self.channels,
            fit=_FITS[self.fit],
        )


@dataclass(frozen=True, slots=True)
class Transform:
    """Call a function that the server's operator has registered, over all columns.

    Tokens contain its name and version: a run resumes only with the same ones.

    Attributes:
        name: Its name on the server.
        version: Its version; empty for the server's.
    """

    name: str
    version: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Transform.name", self.name, wanted="a name that the operator gave")
        instance("Transform.version", self.version, str, wanted="a str")

    def to_message(self) -> pb.Transform:
        """Write the stage down for the wire."""
        return pb.Transform(name=self.name, version=self.version)


@dataclass(frozen=True, slots=True)
class Tokenize:
    """Tokenize a column of text: lists of int32, the same for the same tokenizer and text.

    Resume tokens contain the tokenizer's digest: a run resumes only with the same tokenizer.

    Attributes:
        column: The column, which keeps its name.
        tokenizer: The name that the server's operator gave to a tokenizer with
            ``headrace serve --tokenizer NAME=FILE``.
        special_tokens: Whether to add the special tokens that the tokenizer adds to each text,
            such as those of BERT.
        digest: BLAKE2b-128 of the tokenizer's file in hexadecimal; empty for the server's.
    """

    column: str
    tokenizer: str
    special_tokens: bool = False
    digest: str = ""

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("Tokenize.column", self.column, wanted=_COLUMN)
        text("Tokenize.tokenizer", self.tokenizer, wanted="a name that the operator gave")
        flag("Tokenize.special_tokens", self.special_tokens)
        instance("Tokenize.digest", self.digest, str, wanted="a str")
        if self.digest and not _DIGEST.fullmatch(self.digest):
            raise BadArgumentError(
                f"Tokenize.digest is {shown(self.digest)}; expected 32 hexadecimal digits, as "
                "`b2sum --length 128` prints them",
                field="stages",
            )

    def to_message(self) -> pb.Tokenize:
        """Write the stage down for the wire."""
        return pb.Tokenize(
            column=self.column,
            tokenizer=self.tokenizer,
            digest=self.digest,
            special_tokens=self.special_tokens,
        )

    @property
    def version(self) -> str:
        """The version that resume tokens contain; empty if the server chooses it."""
        return self.digest and tokenizer_version(
            self.column, self.digest, special_tokens=self.special_tokens
        )


Stage = Transform | Cast | Pad | Stack | DecodeImage | OneHot | MixUp | CutMix | Tokenize


def stages_of(stages: object) -> tuple[Stage, ...]:
    """Return the stages that an argument means, in order.

    Raises:
        BadArgumentError: The argument is a single stage, or an element is not a stage.
    """
    wanted = "a list of stages, such as [Cast('label', 'int64')]"
    if isinstance(stages, Stage | str | Mapping | AbstractSet) or not isinstance(stages, Iterable):
        raise BadArgumentError(
            f"stages is {shown(stages)}, of type {type(stages).__name__}; expected {wanted}",
            field="stages",
        )
    found = tuple(stages)
    for at, stage in enumerate(found):
        if not isinstance(stage, Stage):
            raise BadArgumentError(
                f"stages[{at}] is {shown(stage)}, of type {type(stage).__name__}; expected {wanted}"
                + _advice(stage),
                field="stages",
            )
    return found


def _advice(stage: object) -> str:
    kind = stage if isinstance(stage, type) else type(stage)
    if issubclass(kind, ImageTransform):
        return f". Pass it as DecodeImage(…, transforms=[{kind.__name__}(…)])"
    if isinstance(stage, type):
        return f". Pass an object, {kind.__name__}(…), not the class"
    return ". Pass a function as transform= instead" if callable(stage) else ""


def _set_whole(stage: Stage, name: str) -> None:
    field = f"{type(stage).__name__}.{name}"
    object.__setattr__(stage, name, whole(field, getattr(stage, name), low=1, high=_LENGTH_LIMIT))


def transforms_text(stages: Sequence[Stage]) -> str:
    """Return the description of transforms that tokens contain.

    Raises:
        BadArgumentError: The server chooses the version of a transform, so it is unknown here.
    """
    found = [stage for stage in stages if isinstance(stage, Transform | Tokenize)]
    for stage in found:
        if not stage.version:
            what, missing = (
                (f"transform {stage.name!r}", "version")
                if isinstance(stage, Transform)
                else (f"tokenizer {stage.tokenizer!r}", "digest")
            )
            raise BadArgumentError(
                f"the {missing} of the {what} is chosen by the server, so there is no state before "
                f"the first batch; give its {missing}, or take the state later",
                field="stages",
            )
    titles = [
        f"{stage.name if isinstance(stage, Transform) else TOKENIZER}@{stage.version}"
        for stage in found
    ]
    # The server names the decoder with the first batch.
    images = images_title(
        (place, encoded)
        for place, stage in enumerate(stages)
        if (encoded := image_stage(stage.to_message()))
    )
    return ",".join([*titles, *([images] if images else [])])


def may_skip(stages: Sequence[Stage]) -> bool:
    """Return whether other samples may stand in for damaged ones."""
    return any(isinstance(stage, DecodeImage) and stage.on_error == "skip" for stage in stages)
