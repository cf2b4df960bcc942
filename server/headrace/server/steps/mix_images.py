"""Mix the images of a batch, and their labels, with the next samples of the global batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order import transform_keys, uniform_draws
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Partnered, Values
from headrace.server.images.mixing import DRAW_COUNT, Mix, cut_mix, mix_up, mixed
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.steps.column_steps import Columns, wanted_column
from headrace.server.steps.one_hot import FLOAT32, OneHot
from headrace.v1 import shard_service_pb2 as pb

MIXING: Final = frozenset({"mix_up", "cut_mix"})
"""The steps that mix samples."""

_LEAST_ALPHA, _GREATEST_ALPHA = 0.01, 100.0


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """How one batch is mixed.

    Attributes:
        mix: How images and labels are mixed.
        partners: ``(samples,) int64``: the row of the sample that each is mixed with.
    """

    mix: Mix
    partners: NDArray[np.int64]


class MixImages:
    """Mix the images of one column and the labels of another.

    Args:
        step: The step as requested, of one of the kinds in `MIXING`.
        place: The step's index in the request.
        class_counts: The number of named classes by column.

    Raises:
        BadArgumentError: The request is invalid.
    """

    def __init__(self, step: pb.BatchStep, place: int, class_counts: Mapping[str, int]) -> None:
        self.name = "cut_mix" if step.HasField("cut_mix") else "mix_up"
        message = step.cut_mix if step.HasField("cut_mix") else step.mix_up
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

    def columns(self, before: Columns, images: WireColumn) -> dict[str, WireColumn]:
        """Return the columns with the labels replaced by mixed ones.

        Args:
            before: The columns.
            images: The column of images as made by the previous step.

        Raises:
            BadArgumentError: The step does not support these columns.
        """
        if self.name == "mix_up" and images.element_type == pb.ELEMENT_TYPE_UINT8:
            raise self._refusal(
                f"the images of column {images.name!r} are uint8, which cannot be mixed; end their "
                "transforms with Normalize"
            )
        labels = wanted_column(before, self._labels, self.name, (pb.COLUMN_KIND_TENSOR,))
        if labels.dtype == FLOAT32 and len(labels.item_shape) == 1 and not self._class_count:
            self._one_hot = None
            return dict(before)
        self._one_hot = OneHot(self.name, self._labels, self._class_count, self._class_counts)
        return self._one_hot.columns(before)

    def mixed(self, partnered: Partnered, height: int, width: int) -> Mixed:
        """Return how a batch is mixed.

        Args:
            partnered: The samples that those of the batch are mixed with.
            height: The height of its images.
            width: The width of its images.
        """
        keys = transform_keys(np.array([partnered.key], np.uint64), self._place, 0)
        draws = uniform_draws(keys, DRAW_COUNT)[0].tolist()
        mix = (
            mix_up(self._alpha, draws)
            if self.name == "mix_up"
            else cut_mix(self._alpha, height, width, draws)
        )
        return Mixed(mix, partnered.rows)

    def with_labels(self, batch: Batch, how: Mixed) -> Batch:
        """Return the batch's own rows, with their labels mixed.

        Raises:
            StepFailedError: A label is not the index of a class.
        """
        found = batch.columns[self._labels]
        column, values = found.column, found.values
        if self._one_hot is not None:
            column = self._one_hot.columns({self._labels: column})[self._labels]
            values = self._one_hot.vectors(found)
        own = mixed(values[: how.partners.size], values[how.partners], how.mix.share)
        columns = {name: _first_rows(each, own.shape[0]) for name, each in batch.columns.items()}
        columns[self._labels] = replace(columns[self._labels], column=column, values=own)
        return replace(batch, columns=columns, row_count=own.shape[0])

    def cost(self, batch: Batch) -> int:
        """Return the most memory that `with_labels` takes, in bytes."""
        values = batch.columns[self._labels].values
        if self._one_hot is None:
            return 4 * values.nbytes
        return 4 * self._one_hot.cost(batch)

    def _refusal(self, why: str) -> BadArgumentError:
        return BadArgumentError(f"{self.name}: {why}", field="steps")


def _first_rows(found: Values, count: int) -> Values:
    valid = None if found.valid is None else found.valid[:count]
    if found.offsets is None:
        return replace(found, values=found.values[:count], valid=valid)
    offsets = found.offsets[: count + 1]
    return replace(found, values=found.values[: offsets[-1]], offsets=offsets, valid=valid)
