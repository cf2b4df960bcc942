"""Images: files to pixels, augmented and mixed; and their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from headrace.errors import BadArgumentError, TokenSpecChangedError
from headrace.order import IMAGES, images_title, split_images
from headrace.server.batch.stage import Stage
from headrace.server.settings.numbers import check_numbers
from headrace.server.settings.plug_settings import PlugSettings
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stages.images.augment_image import AugmentImage
from headrace.server.stages.images.files import decoder_versions
from headrace.server.stages.images.follow_image import MOST_COLUMNS
from headrace.server.stages.images.mix_images import MixImages, title_of
from headrace.server.stages.images.one_hot import OneHot
from headrace.server.stages.images.pixel_cache import PixelCache, PixelMetrics
from headrace.server.stages.images.recipe import MOST_TRANSFORMS
from headrace.server.stream.stage_plugs import Asked, Facts, Mark, StageKind, StagePlug
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import images_pb2 as pb
from headrace.v1.image_stages import image_stage

_MOST_CHANNELS = 64  # more than an image has
_LIMITS = {
    "DecodeImage.transforms": MOST_TRANSFORMS,
    "DecodeImage.masks": MOST_COLUMNS,
    "DecodeImage.boxes": MOST_COLUMNS,
    "Boxes.labels": MOST_COLUMNS,
    "Resize.size": 2,
    "ColorJitter.brightness": 2,
    "ColorJitter.contrast": 2,
    "ColorJitter.saturation": 2,
    "ColorJitter.hue": 2,
    "RandomErasing.value": _MOST_CHANNELS,
    "Normalize.mean": _MOST_CHANNELS,
    "Normalize.std": _MOST_CHANNELS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSettings(PlugSettings):
    """The settings of images.

    Attributes:
        decoded_cache_bytes: Maximum memory for decoded images, kept for other ranks, jobs and
            epochs; 0 keeps none.
    """

    decoded_cache_bytes: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, least={"decoded_cache_bytes": 0})

    def of_worker(self, worker_count: int) -> Self:
        return replace(self, decoded_cache_bytes=self.decoded_cache_bytes // worker_count)


class Plug(StagePlug):
    """The stages of a server, with its cache of decoded images."""

    settings = ImageSettings

    def __init__(self, config: ServerConfig, metrics: Metrics) -> None:
        observer = PixelMetrics(metrics.registry)
        self._pixels: PixelCache | None = None
        if budget := config.of_plug(ImageSettings).decoded_cache_bytes:
            self._pixels = PixelCache(budget, observer=observer)
            observer.watch(self._pixels)
        self.kinds = (
            StageKind("decode_image", pb.DecodeImage, self._decoding, limits=_LIMITS),
            StageKind("one_hot", pb.OneHot, _one_hot),
            StageKind("mix_up", pb.MixUp, _mixing),
            StageKind("cut_mix", pb.CutMix, _mixing),
        )

    def mark(self, asked: Sequence[Asked]) -> Mark:
        found = [(each.place, encoded) for each in asked if (encoded := image_stage(each.options))]
        title = images_title(found, decoder_versions()) if found else ""
        may_change = any(
            isinstance(each.options, pb.DecodeImage) and each.options.allow_decoder_change
            for each in asked
        )
        return Mark(IMAGES, title, lambda other: _check(other, title, may_change=may_change))

    def _decoding(self, options: pb.DecodeImage, facts: Facts) -> Stage:
        return AugmentImage(options, facts.place, self._pixels)


def _one_hot(options: pb.OneHot, facts: Facts) -> OneHot:
    return OneHot("one_hot", options.column, options.class_count, facts.class_counts)


def _mixing(options: pb.MixUp | pb.CutMix, facts: Facts) -> MixImages:
    """Return a stage that mixes images.

    Raises:
        BadArgumentError: It is not the last one, or does not follow the one that makes its images.
    """
    place = facts.place
    before = facts.options[place - 1] if place else None
    if (
        place + 1 == len(facts.options)
        and isinstance(before, pb.DecodeImage)
        and before.column == options.column
    ):
        return MixImages(options, before, place, facts.class_counts)
    raise BadArgumentError(
        f"stages[{place}], {title_of(options)}, must be the last stage, right after the "
        f"DecodeImage that makes its column {options.column!r}",
        field="stages",
    )


def _check(found: str, wanted: str, *, may_change: bool) -> None:
    """Refuse a token for images that went through other stages, or another decoder."""
    (_, digest, decoder), (_, own_digest, own_decoder) = map(split_images, (found, wanted))
    if digest != own_digest:
        raise TokenSpecChangedError(
            f"the token is for images that went through other stages ({digest or 'none'}) than "
            f"those requested ({own_digest or 'none'}); request the same image transforms, at the "
            "same places in stages, or start over",
            token_transforms=digest,
            transforms=own_digest,
        )
    # A token from before the first batch names no decoder.
    if decoder not in {"", own_decoder} and not may_change:
        raise TokenSpecChangedError(
            f"this server decodes images with {decoder_versions()}, but the token's server used "
            "other versions, whose pixels may differ; ask a server that has those, or accept the "
            "change with allow_decoder_change",
            token_transforms=decoder,
            transforms=own_decoder,
        )
