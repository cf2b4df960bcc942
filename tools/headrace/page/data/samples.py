"""Read samples by id, and make files and boxes of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.page.data.library import Library
from headrace.page.data.media import File, coloured, image, mask_classes, raster, sound, sound_type
from headrace.page.data.values import Column, array_of, pixels_of
from headrace.storage import OpenDataset

SIDE: Final = 512
"""The longer side of redrawn images, in pixels."""
MAX_BOXES: Final = 200
_CORNERS: Final = 4


Box = tuple[float, float, float, float]
"""The corner, the width and the height of a box over an image, in pixels of the image."""


def rows_of(
    library: Library, dataset: OpenDataset, sample_ids: Sequence[int]
) -> list[pa.RecordBatch]:
    """Return each sample as a batch of one row, reading each block once.

    Raises:
        BadArgumentError: The dataset has no such id.
        HeadraceError: A block cannot be read.
    """
    count = dataset.sample_count
    for sample in sample_ids:
        if not 0 <= sample < count:
            raise BadArgumentError(
                f"there is no sample {sample}; ids are 0 to {count - 1}"
                if count
                else f"there is no sample {sample}; the dataset is empty",
                field="id",
            )
    if not sample_ids:
        return []
    blocks, offsets = dataset.locate(np.array(sample_ids, np.int64))
    return [
        library.block(dataset, block).slice(offset, 1)
        for block, offset in zip(blocks.tolist(), offsets.tolist(), strict=True)
    ]


def column_named(columns: Sequence[Column], name: str) -> Column:
    """Return a column.

    Raises:
        ColumnNotFoundError: There is no column of that name.
    """
    for column in columns:
        if column.name == name:
            return column
    raise ColumnNotFoundError(f"there is no column {name[:128]!r}", column=name[:128])


def file_of(column: Column, row: pa.RecordBatch, *, as_mask: bool) -> File | str:
    """Return a value as a file for a browser, or a note why that is impossible.

    Args:
        column: The column of the value.
        row: The sample.
        as_mask: Whether to draw it as a mask over an image.
    """
    scalar: Any = row.column(column.name)[0]
    if not scalar.is_valid:
        return "null"
    if column.is_raster:
        values = array_of(scalar, column.shape)
        if values is None:
            return "it contains nulls"
        return coloured(values) if as_mask else raster(pixels_of(values)[0])
    value = scalar.as_py()
    if not isinstance(value, bytes):
        return "neither an image nor a sound"
    if as_mask:
        classes = mask_classes(value)
        return classes if isinstance(classes, str) else coloured(classes)
    return image(value, SIDE) if sound_type(value) is None else sound(value)


def boxes_of(column: Column, row: pa.RecordBatch, *, form: str) -> list[Box]:
    """Return the boxes of a sample, each as four numbers in pixels of the stored image.

    Args:
        column: A column whose values are boxes of four numbers each, or one such box.
        row: The sample.
        form: ``xyxy`` for two corners, or ``xywh`` for a corner and the sides.
    """
    value = row.column(column.name)[0].as_py()
    if not isinstance(value, list):
        return []
    quads = value if value and isinstance(value[0], list) else [value]
    boxes = []
    for quad in quads[:MAX_BOXES]:
        numbers = [each for each in quad or [] if isinstance(each, int | float)]
        if len(numbers) != _CORNERS or not np.isfinite(numbers).all():
            continue
        x, y, right, bottom = map(float, numbers)
        width, height = (right, bottom) if form == "xywh" else (right - x, bottom - y)
        if width >= 0 and height >= 0:
            boxes.append((x, y, width, height))
    return boxes


def guess_column(columns: Sequence[Column], words: Sequence[str]) -> str:
    """Return the first column whose name contains one of the words, or an empty text."""
    return next((one.name for one in columns if any(w in one.name.lower() for w in words)), "")
