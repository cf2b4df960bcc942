"""Mix the images of a batch, and their labels, with the next samples of the global batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import RankBatch, transform_keys, uniform_draws
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Group, Later, Values, make_now, unmade
from headrace.server.batch.row_pool import Waits, Workers
from headrace.server.batch.stage import (
    Accompany,
    Columns,
    Companions,
    Context,
    Running,
    Stage,
    wanted_column,
)
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.images.mixing import DRAW_COUNT, Mix, cut_mix, mix_up, mixed
from headrace.server.stages.images.one_hot import FLOAT32, OneHot
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

_LEAST_ALPHA, _GREATEST_ALPHA = 0.01, 100.0


class MixImages(Stage):
    """Mix the images of one column and the labels of another.

    Args:
        message: The stage as requested.
        images: The stage before it, which makes the images.
        place: Its place in the request.
        class_counts: The number of named classes by column.

    Raises:
        BadArgumentError: The request is invalid.
    """

    takes_unmade = True

    def __init__(
        self,
        message: images_pb.MixUp | images_pb.CutMix,
        images: images_pb.DecodeImage,
        place: int,
        class_counts: Mapping[str, int],
    ) -> None:
        self._name = title_of(message)
        self._images = images.column
        self._is_chw = images.layout == images_pb.IMAGE_LAYOUT_CHW
        self._place = place
        self._alpha = message.alpha
        self._labels = message.labels
        self._class_count = message.class_count
        self._class_counts = class_counts
        self._one_hot: OneHot | None = None
        if not _LEAST_ALPHA <= message.alpha <= _GREATEST_ALPHA:
            raise self._refusal(
                f"alpha is {message.alpha:g}; it must be in [{_LEAST_ALPHA:g}, {_GREATEST_ALPHA:g}]"
            )
        if message.labels in {message.column, SAMPLE_ID_COLUMN}:
            raise self._refusal(f"labels is {message.labels!r}; it must be a column of labels")
        if images.masks or images.boxes:
            raise self._refusal("images with masks or boxes cannot be mixed; leave one out")

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        images = before[self._images]
        if self._name == "mix_up" and images.element_type == pb.ELEMENT_TYPE_UINT8:
            raise self._refusal(
                f"the images of column {images.name!r} are uint8, which cannot be mixed; end their "
                "transforms with Normalize"
            )
        labels = wanted_column(before, self._labels, self._name, (pb.COLUMN_KIND_TENSOR,))
        if labels.dtype == FLOAT32 and len(labels.item_shape) == 1 and not self._class_count:
            self._one_hot = None
            return dict(before)
        self._one_hot = OneHot(self._name, self._labels, self._class_count, self._class_counts)
        return self._one_hot.columns(before)

    @property
    def accompany(self) -> Accompany:
        """Finds the next sample of each."""
        return partners_of

    def run(self, batch: Batch, context: Context) -> Running[Batch]:
        assert batch.group is not None
        context.claim(self._cost(batch))
        yield None
        images, partners = batch.columns[self._images], batch.group.rows
        mix = self._mix(batch.group, images.column)
        columns = {name: _first_rows(each, partners.size) for name, each in batch.columns.items()}
        columns[self._labels] = self._mixed_labels(batch.columns[self._labels], partners, mix.share)
        # All images before they are mixed.
        beside_bytes = images.values.nbytes
        if images.later is not None:
            beside_bytes += images.later.beside_bytes
        later = Later(partial(self._make, images, partners.tolist(), mix), beside_bytes)
        columns[self._images] = replace(
            unmade(images.column, partners.size, later), valid=columns[self._images].valid
        )
        keys = batch.keys[: partners.size]
        return replace(batch, columns=columns, row_count=partners.size, keys=keys)

    def _make(
        self,
        images: Values,
        partners: Sequence[int],
        mix: Mix,
        rows: Sequence[NDArray[np.uint8]],
        workers: Workers,
    ) -> Waits[None]:
        whole = (yield from make_now(images, workers)).values

        def planes(image: NDArray[np.generic]) -> NDArray[np.generic]:
            # Height and width last, even for images whose channels come last.
            return image if self._is_chw else image.transpose(2, 0, 1)

        def make(row: int) -> None:
            out = rows[row].view(whole.dtype).reshape(whole.shape[1:])
            mix.mix(planes(whole[row]), planes(whole[partners[row]]), planes(out))

        yield from workers.work(len(rows), make)

    def _mix(self, group: Group, images: WireColumn) -> Mix:
        """Return how a batch is mixed."""
        keys = transform_keys(np.array([group.key], np.uint64), self._place, 0)
        draws = uniform_draws(keys, DRAW_COUNT)[0].tolist()
        if self._name == "mix_up":
            return mix_up(self._alpha, draws)
        height, width = images.item_shape[1:] if self._is_chw else images.item_shape[:2]
        return cut_mix(self._alpha, height, width, draws)

    def _mixed_labels(self, found: Values, partners: NDArray[np.int64], share: float) -> Values:
        column, values = found.column, found.values
        if self._one_hot is not None:
            column = self._one_hot.columns({self._labels: column})[self._labels]
            values = self._one_hot.vectors(found)
        own = mixed(values[: partners.size], values[partners], share)
        return replace(_first_rows(found, partners.size), column=column, values=own)

    def _cost(self, batch: Batch) -> int:
        """Return the most memory that mixing labels takes, in bytes."""
        values = batch.columns[self._labels].values
        return 4 * (values.nbytes if self._one_hot is None else self._one_hot.cost(batch))

    def _refusal(self, why: str) -> BadArgumentError:
        return BadArgumentError(f"{self._name}: {why}", field="stages")


def title_of(message: images_pb.MixUp | images_pb.CutMix) -> str:
    """Return the name of a stage in requests and errors."""
    return "cut_mix" if isinstance(message, images_pb.CutMix) else "mix_up"


def _first_rows(found: Values, count: int) -> Values:
    valid = None if found.valid is None else found.valid[:count]
    if found.offsets is None:
        return replace(found, values=found.values[:count], valid=valid)
    offsets = found.offsets[: count + 1]
    return replace(found, values=found.values[: offsets[-1]], offsets=offsets, valid=valid)


def partners_of(part: RankBatch, positions: NDArray[np.int64]) -> Companions:
    """Return the next sample of each sample, with which its image is mixed.

    The next sample of a global batch's last one is its first, so the result depends neither on the
    world size nor on how samples are dealt. A rank with consecutive samples needs one more.

    Args:
        part: The rank's part of a global batch.
        positions: ``(samples,) int64``: of its samples, within the global batch; pads may repeat
            some.
    """
    nexts = part.position + (positions - part.position + 1) % max(1, part.global_sample_count)
    others = np.setdiff1d(nexts, positions)
    rows = np.concatenate([positions, others])
    rising = np.argsort(rows, kind="stable")
    return Companions(others, rising[np.searchsorted(rows[rising], nexts)])
