"""Stages for labels, and for images and their labels together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.arguments import number, text, whole_or_none
from headrace.client.options.stage import COLUMN, Stage
from headrace.order import images_title
from headrace.v1 import images_pb2 as pb
from headrace.v1.image_stages import image_stage

_CLASS_LIMIT = (1 << 16) + 1
_LEAST_ALPHA, _GREATEST_ALPHA = 0.01, 100.0


@dataclass(frozen=True, slots=True)
class OneHot(Stage):
    """Turn class indices into vectors of float32: 1 at the index, 0 elsewhere.

    Attributes:
        column: The column of class indices, integers in [0, `num_classes`).
        num_classes: Number of classes; None for the number that the dataset names.
    """

    column: str
    num_classes: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        text("OneHot.column", self.column, wanted=COLUMN)
        _check_classes("OneHot", self.num_classes)

    def to_message(self) -> pb.OneHot:
        """Write the stage down for the wire."""
        return pb.OneHot(column=self.column, class_count=self.num_classes or 0)


@dataclass(frozen=True, slots=True)
class _Mixing(Stage):
    """What `MixUp` and `CutMix` have in common."""

    column: str
    labels: str
    alpha: float = 1.0
    num_classes: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that no server accepts."""
        name = type(self).__name__
        text(f"{name}.column", self.column, wanted=COLUMN)
        text(f"{name}.labels", self.labels, wanted=COLUMN)
        alpha = number(f"{name}.alpha", self.alpha, least=_LEAST_ALPHA, most=_GREATEST_ALPHA)
        object.__setattr__(self, "alpha", alpha)
        _check_classes(name, self.num_classes)

    def _fields(self) -> dict[str, Any]:
        return {
            "column": self.column,
            "labels": self.labels,
            "alpha": self.alpha,
            "class_count": self.num_classes or 0,
        }

    def shared_title(self, stages: Sequence[Stage]) -> str:
        """Return the digest of all stages of images."""
        return title_of_images(stages)


class MixUp(_Mixing):
    """Mix each image with the next one of the global batch, and their labels likewise.

    It must be the last stage, directly after the `DecodeImage` that makes the images, whose
    transforms must end in floating point (`Normalize`). One share is drawn per global batch, so
    images and labels are the same for every world size.

    Attributes:
        column: The column of images.
        labels: The column of labels: class indices, or the vectors of an `OneHot` before it.
            The result is vectors of float32.
        alpha: Both parameters of the beta distribution that the share is drawn from, in
            [0.01, 100].
        num_classes: How many classes there are; None for as many as the dataset names.
    """

    __slots__ = ()

    def to_message(self) -> pb.MixUp:
        """Write the stage down for the wire."""
        return pb.MixUp(**self._fields())


class CutMix(_Mixing):
    """Paste a box of the next image of the global batch into each one, and mix their labels.

    Its place is that of `MixUp`. One box is drawn per global batch; labels are mixed by its area.

    Attributes:
        column: The column of images.
        labels: See `MixUp`.
        alpha: Both parameters of the beta distribution that the area is drawn from, in [0.01, 100].
        num_classes: See `MixUp`.
    """

    __slots__ = ()

    def to_message(self) -> pb.CutMix:
        """Write the stage down for the wire."""
        return pb.CutMix(**self._fields())


def title_of_images(stages: Sequence[Stage]) -> str:
    """Return the entry in resume tokens of all stages that transform or mix images."""
    # The server names the decoder with the first batch.
    return images_title(
        (place, encoded)
        for place, stage in enumerate(stages)
        if (encoded := image_stage(stage.to_message()))
    )


def _check_classes(name: str, count: int | None) -> None:
    whole_or_none(f"{name}.num_classes", count, low=1, high=_CLASS_LIMIT)
