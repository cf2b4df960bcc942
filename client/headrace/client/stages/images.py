"""The stage that decodes images, and transforms them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.arguments import flag, one_of, text
from headrace.client.options.stage import COLUMN, Stage, set_whole
from headrace.client.stages.image_transforms import (
    Boxes,
    ImageTransform,
    boxes_of,
    image_transforms_of,
    names_of,
)
from headrace.client.stages.mixing import title_of_images
from headrace.errors import BadArgumentError
from headrace.v1 import images_pb2 as pb

_FITS = {
    "cover": pb.IMAGE_FIT_COVER,
    "contain": pb.IMAGE_FIT_CONTAIN,
    "stretch": pb.IMAGE_FIT_STRETCH,
}
_LAYOUTS = {"HWC": pb.IMAGE_LAYOUT_HWC, "CHW": pb.IMAGE_LAYOUT_CHW}
# The default is left out, so tokens are the same as before this option existed.
_ON_ERROR = {"raise": pb.ON_ERROR_UNSPECIFIED, "skip": pb.ON_ERROR_SKIP}


@dataclass(frozen=True, slots=True)
class DecodeImage(Stage):
    """Decode a column of image files to a tensor ``(samples, height, width, channels)``.

    Each JPEG, PNG, WebP or AVIF is decoded, rotated as its EXIF says, brought to `height` x `width`
    if they are given, as in ``DecodeImage("image", 224, 224)``, and passes the transforms, as in
    ``DecodeImage("image", transforms=[RandomResizedCrop(224)])``.

    Attributes:
        column: The column.
        height: Height in pixels, before `transforms`; None if they determine it.
        width: Width in pixels; None if `transforms` determine it.
        channels: 3 for red, green and blue, 1 for luminance.
        fit: How to scale: to ``cover`` the size and crop to the centre; to fit within it, padded
            with zeros (``contain``); or to the exact size, without keeping proportions
            (``stretch``).
        transforms: The transforms of each image, in this order: `Resize`, `CenterCrop`,
            `RandomResizedCrop`, `RandomHorizontalFlip`, `RandomVerticalFlip`, `ColorJitter`,
            `RandomErasing` and `Normalize`.
        layout: ``CHW`` puts channels first.
        on_error: How to treat an image that cannot be decoded: it fails the batch (``raise``), or
            another sample takes its place, as with ``skips=``, and `Batch.damaged_ids` has its id
            (``skip``).
        masks: Columns of mask files, which are transformed as their images are and become
            ``(samples, height, width) uint8``.
        boxes: Bounding boxes that follow the images.
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
        text("DecodeImage.column", self.column, wanted=COLUMN)
        object.__setattr__(self, "transforms", image_transforms_of(self.transforms))
        set_whole(self, "channels")
        if self.channels not in (1, 3):
            raise BadArgumentError(
                f"DecodeImage.channels is {self.channels}; expected 3 for colours, or 1",
                field="stages",
            )
        one_of("DecodeImage.fit", self.fit, tuple(_FITS))
        one_of("DecodeImage.layout", self.layout, tuple(_LAYOUTS))
        one_of("DecodeImage.on_error", self.on_error, tuple(_ON_ERROR))
        if not self.transforms or (self.height, self.width) != (None, None):
            for name in ("height", "width"):
                set_whole(self, name)
        elif self.fit != "cover":
            raise BadArgumentError(
                f"DecodeImage.fit is {self.fit!r} without height and width; give both, or leave "
                "fit out",
                field="stages",
            )
        object.__setattr__(self, "masks", names_of("DecodeImage.masks", self.masks))
        object.__setattr__(self, "boxes", boxes_of(self.boxes))
        flag("DecodeImage.allow_decoder_change", self.allow_decoder_change)

    def to_message(self) -> pb.DecodeImage:
        """Write the stage down for the wire."""
        return pb.DecodeImage(
            column=self.column,
            height=self.height,
            width=self.width,
            channels=self.channels,
            # The default is left out where no size is asked for.
            fit=_FITS[self.fit] if self.height else None,
            transforms=[each.to_message() for each in self.transforms],
            layout=_LAYOUTS[self.layout],
            on_error=_ON_ERROR[self.on_error],
            masks=names_of("DecodeImage.masks", self.masks),
            boxes=[each.to_message() for each in boxes_of(self.boxes)],
            allow_decoder_change=self.allow_decoder_change,
        )

    def shared_title(self, stages: Sequence[Stage]) -> str:
        """Return the digest of all stages of images."""
        return title_of_images(stages)

    @property
    def may_replace(self) -> bool:
        """Whether other samples may take the place of damaged ones."""
        return self.on_error == "skip"
