"""Transform masks, pixel by pixel, and boxes in the same way as their image.

docs/augmentation.md specifies both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.server.stages.images.frame import Box, Frame
from headrace.v1 import images_pb2 as pb

NUMBERS: Final = 4
"""Numbers per box."""


def follow_pixels(frame: Frame, mask: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write a mask transformed like its image; beyond the image there are zeros.

    Args:
        frame: How the image is transformed.
        mask: ``(height, width) uint8``, of the size of the image.
        out: ``(height, width) uint8``, of the size of the frame.
    """
    rows, is_row = _sources(frame, axis=0)
    columns, is_column = _sources(frame, axis=1)
    out[...] = mask[rows[:, None], columns]
    if not (is_row.all() and is_column.all()):
        out[~is_row] = 0
        out[:, ~is_column] = 0


def _sources(frame: Frame, *, axis: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the line of the image for each line of the frame, and whether there is one."""
    start, length = frame.box[axis], frame.box[axis + 2]
    size = frame.size[axis]
    scaled = frame.window[axis] + np.arange(frame.window[axis + 2])
    scaled = scaled[:: -1 if frame.flips[axis] else 1]
    if frame.early[axis]:
        lines = start + length - 1 - (size - 1 - scaled) * length // size
    else:
        lines = start + scaled * length // size
    is_there = (scaled >= 0) & (scaled < size)
    return np.where(is_there, lines, 0), is_there


def follow_boxes(
    frame: Frame, boxes: NDArray[np.generic], box_format: pb.BoxFormat, min_size: float
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return boxes transformed and clipped, and which of them are large enough to keep.

    Args:
        frame: How the image is transformed.
        boxes: ``(boxes, 4)``.
        box_format: The meaning of the four numbers.
        min_size: The minimum width and height of a box to keep.
    """
    corners = _corners(boxes.astype(np.float64), box_format)
    for axis in (0, 1):
        # Rows are the second and fourth of the numbers.
        own = corners[:, 1 - axis :: 2]
        own -= frame.box[axis]
        own *= frame.size[axis] / frame.box[axis + 2]
        own -= frame.window[axis]
        if frame.flips[axis]:
            own[...] = frame.window[axis + 2] - own[:, ::-1]
        np.clip(own, 0.0, frame.window[axis + 2], out=own)
    sizes = corners[:, 2:] - corners[:, :2]
    is_kept = np.asarray((sizes >= min_size).all(axis=1))
    return _numbers(corners[is_kept], box_format).astype(np.float32), is_kept


def _corners(boxes: NDArray[np.float64], box_format: pb.BoxFormat) -> NDArray[np.float64]:
    if box_format == pb.BOX_FORMAT_XYWH:
        boxes[:, 2:] += boxes[:, :2]
    elif box_format == pb.BOX_FORMAT_CXCYWH:
        half = boxes[:, 2:] / 2
        boxes = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], axis=1)
    return boxes


def _numbers(corners: NDArray[np.float64], box_format: pb.BoxFormat) -> NDArray[np.float64]:
    sizes = corners[:, 2:] - corners[:, :2]
    if box_format == pb.BOX_FORMAT_XYWH:
        return np.concatenate([corners[:, :2], sizes], axis=1)
    if box_format == pb.BOX_FORMAT_CXCYWH:
        return np.concatenate([corners[:, :2] + sizes / 2, sizes], axis=1)
    return corners


def frame_of_size(height: int, width: int) -> Frame:
    """Return a frame for an image of which only the size is known."""
    whole: Box = (0, 0, height, width)
    nothing = np.broadcast_to(np.zeros((), np.uint8), (height, width, 1))
    return Frame(nothing, whole, (height, width), whole)
