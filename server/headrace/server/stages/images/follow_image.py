"""Transform the columns that follow images: masks, and boxes with their labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.server.batch.batch_values import Batch, Values
from headrace.server.batch.stage import Columns, tensor_of, wanted_column
from headrace.server.layout.wire_columns import WireColumn
from headrace.server.stages.images.files import head_of, mask_pixels
from headrace.server.stages.images.frame import Frame
from headrace.server.stages.images.image_work import decode_work
from headrace.server.stages.images.placement import NUMBERS, follow_boxes, follow_pixels
from headrace.server.stages.images.recipe import refusal
from headrace.v1 import images_pb2 as images_pb
from headrace.v1 import shard_service_pb2 as pb

_FLOAT32 = np.dtype("<f4")
_BYTE = np.dtype(np.uint8)
MOST_COLUMNS = 16
"""The most columns that images and what follows them have."""
# Bytes of memory that boxes and labels take per number.
_NUMBER_BYTES = 96


@dataclass(frozen=True, slots=True, eq=False)
class Annotations:
    """The masks and boxes made so far for the images of a batch.

    Attributes:
        masks: By column: ``(rows, height, width) uint8``.
        boxes: By column: for each row, the boxes and which of them are kept.
    """

    masks: dict[str, NDArray[np.uint8]]
    boxes: dict[str, list[tuple[NDArray[np.float32], NDArray[np.bool_]]]]


class Followers:
    """Make the masks and boxes that belong to one column of images.

    Args:
        message: The stage as requested.
        height: The height of the resulting images, in pixels.
        width: Their width, in pixels.

    Raises:
        BadArgumentError: The request is invalid.
    """

    def __init__(self, message: images_pb.DecodeImage, *, height: int, width: int) -> None:
        self._masks = tuple(message.masks)
        self._boxes = tuple(message.boxes)
        self._size = height, width
        names = [message.column, *self._masks]
        for boxes in self._boxes:
            names += [boxes.column, *boxes.labels]
            if boxes.format not in images_pb.BoxFormat.values() or not (
                boxes.min_size >= 0 and math.isfinite(boxes.min_size)
            ):
                raise refusal(
                    f"boxes of column {boxes.column!r} have the format {boxes.format} and the "
                    f"min_size {boxes.min_size:g}; they must be a BoxFormat, and 0 or more"
                )
        if len(names) > MOST_COLUMNS:
            raise refusal(
                f"{len(names) - 1} columns follow the images; there must be at most "
                f"{MOST_COLUMNS - 1}"
            )
        twice = [name for at, name in enumerate(names) if name in names[:at]]
        if twice or SAMPLE_ID_COLUMN in names:
            raise refusal(
                f"column {(twice or [SAMPLE_ID_COLUMN])[0]!r} cannot follow the images; name each "
                "column of masks, boxes and labels once"
            )

    def columns(self, before: Columns) -> dict[str, WireColumn]:
        """Return the columns after this stage.

        Raises:
            BadArgumentError: The columns do not have the kinds of masks, boxes and labels.
        """
        made = {}
        for name in self._masks:
            column = wanted_column(before, name, "decode_image", (pb.COLUMN_KIND_BYTES,))
            made[name] = self._mask(column)
        for boxes in self._boxes:
            column = _ragged(before, boxes.column)
            if column.dtype == BFLOAT16 or column.element_type == pb.ELEMENT_TYPE_BOOL:
                raise refusal(f"column {boxes.column!r} does not contain numbers")
            made[boxes.column] = _box(column)
            for label in boxes.labels:
                made[label] = _ragged(before, label)
        return made

    def cost(self, batch: Batch) -> int:
        """Return the memory that following a batch takes, in bytes.

        A mask is as large as its image, whose pixels take more and are decoded after it.
        """
        masks = len(self._masks) * batch.row_count * math.prod(self._size)
        names = [name for boxes in self._boxes for name in (boxes.column, *boxes.labels)]
        return masks + _NUMBER_BYTES * sum(batch.columns[name].values.size for name in names)

    def begin(self, batch: Batch) -> Annotations:
        """Return an empty result for a batch: masks of zeros, and no boxes."""
        nothing = np.empty((0, NUMBERS), np.float32), np.empty(0, np.bool_)
        return Annotations(
            {name: np.zeros((batch.row_count, *self._size), np.uint8) for name in self._masks},
            {boxes.column: [nothing] * batch.row_count for boxes in self._boxes},
        )

    def work(self, batch: Batch, row: int) -> int:
        """Return the work of decoding the masks of a row, in pixels.

        Raises:
            ValueError: It is too much, or a mask is not an image; OSError and SyntaxError are also
                raised.
        """
        total = 0
        for name in self._masks:
            content = _file(batch.columns[name], row)
            if content is not None:
                head = head_of(content)
                total += decode_work(head.width, head.height, content)
        return total

    def follow(
        self,
        batch: Batch,
        row: int,
        followed: Annotations,
        place: Callable[[], tuple[Frame, int, int]],
    ) -> None:
        """Make the masks and boxes of a row.

        Args:
            batch: The batch.
            row: The row of an image that is not null.
            followed: Receives the masks and boxes.
            place: Returns how the image is transformed, and its height and width.

        Raises:
            ValueError: A mask differs in size from its image, boxes do not have four numbers each,
                or their number differs from that of labels; errors of `mask_pixels` are also
                raised.
        """
        frame, height, width = place()
        for name in self._masks:
            content = _file(batch.columns[name], row)
            if content is not None:
                pixels = mask_pixels(content, (height, width))
                follow_pixels(frame, pixels, followed.masks[name][row])
        for boxes in self._boxes:
            found_boxes = batch.columns[boxes.column]
            if found_boxes.valid is not None and not found_boxes.valid[row]:
                # No boxes, regardless of labels.
                continue
            numbers = _row(found_boxes, row)
            if numbers.size % NUMBERS or not np.isfinite(numbers).all():
                raise ValueError(
                    f"its boxes in column {boxes.column!r} are {numbers.size} numbers; each takes "
                    f"{NUMBERS}, none of them NaN or infinite"
                )
            count = numbers.size // NUMBERS
            for label in boxes.labels:
                if _row(batch.columns[label], row).size != count:
                    raise ValueError(
                        f"it has {count} boxes in column {boxes.column!r} and "
                        f"{_row(batch.columns[label], row).size} labels in column {label!r}"
                    )
            found = follow_boxes(
                frame, numbers.reshape(count, NUMBERS), boxes.format, boxes.min_size
            )
            followed.boxes[boxes.column][row] = found

    def values(self, batch: Batch, followed: Annotations) -> dict[str, Values]:
        """Return the columns of a batch with masks, boxes and labels replaced."""
        made: dict[str, Values] = {}
        for name, pixels in followed.masks.items():
            found = batch.columns[name]
            made[name] = Values(self._mask(found.column), pixels, None, found.valid)
        for boxes in self._boxes:
            rows = followed.boxes[boxes.column]
            found = batch.columns[boxes.column]
            numbers = [each.reshape(-1) for each, _ in rows]
            made[boxes.column] = _joined(replace(found, column=_box(found.column)), numbers)
            for label in boxes.labels:
                column = batch.columns[label]
                kept = [
                    # A row without an image has no boxes, so it has no labels.
                    own[is_kept] if is_kept.size == own.size else own[:0]
                    for own, (_, is_kept) in (
                        (_row(column, row), each) for row, each in enumerate(rows)
                    )
                ]
                made[label] = _joined(column, kept)
        return made

    def _mask(self, column: WireColumn) -> WireColumn:
        made = tensor_of(column, self._size)
        return replace(made, element_type=pb.ELEMENT_TYPE_UINT8, dtype=_BYTE, logical_type="")


def followers_of(message: images_pb.DecodeImage, *, height: int, width: int) -> Followers | None:
    """Return what follows a column of images; None if nothing does.

    Raises:
        BadArgumentError: The request is invalid.
    """
    if not message.masks and not message.boxes:
        return None
    return Followers(message, height=height, width=width)


def _ragged(columns: Mapping[str, WireColumn], name: str) -> WireColumn:
    return wanted_column(columns, name, "decode_image", (pb.COLUMN_KIND_RAGGED,))


def _box(column: WireColumn) -> WireColumn:
    return replace(column, element_type=pb.ELEMENT_TYPE_FLOAT32, dtype=_FLOAT32, logical_type="")


def _row(found: Values, row: int) -> NDArray[Any]:
    assert found.offsets is not None
    start, end = found.offsets[row : row + 2].tolist()
    return found.values[start:end]


def _file(found: Values, row: int) -> memoryview | None:
    """Return the bytes of a file; None for null."""
    if found.valid is not None and not found.valid[row]:
        return None
    return np.ascontiguousarray(_row(found, row)).view(np.uint8).data.toreadonly()


def _joined(found: Values, rows: Sequence[NDArray[np.generic]]) -> Values:
    offsets = np.array([0, *accumulate(each.size for each in rows)], np.int64)
    empty = np.empty(0, found.column.dtype)
    return replace(found, values=np.concatenate([empty, *rows]), offsets=offsets)
