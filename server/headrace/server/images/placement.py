"""What follows an image where it goes: masks pixel by pixel, and boxes.

docs/augmentation.md specifies both.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.server.images.frame import Box, Frame
from headrace.v1 import shard_service_pb2 as pb

NUMBERS: Final = 4
"""Of each box."""


def follow_pixels(frame: Frame, mask: NDArray[np.uint8], out: NDArray[np.uint8]) -> None:
    """Write a mask as its image goes; beyond the image there are zeros.

    Args:
        frame: What becomes of the image.
        mask: ``(height, width)`` of the image.
        out: ``(height, width)`` of the frame.
    """
    rows, is_row = _sources(frame, axis=0)
    columns, is_column = _sources(frame, axis=1)
    out[...] = mask[rows[:, None], columns]
    if not (is_row.all() and is_column.all()):
        out[~is_row] = 0
        out[:, ~is_column] = 0


def _sources(frame: Frame, *, axis: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which line of the image each of the frame's is taken from, and whether there is."""
    begin, length = frame.box[axis], frame.box[axis + 2]
    size = frame.size[axis]
    scaled = frame.window[axis] + np.arange(frame.window[axis + 2])
    scaled = scaled[:: -1 if frame.flips[axis] else 1]
    if frame.early[axis]:
        lines = begin + length - 1 - (size - 1 - scaled) * length // size
    else:
        lines = begin + scaled * length // size
    is_there = (scaled >= 0) & (scaled < size)
    return np.where(is_there, lines, 0), is_there


def follow_boxes(
    frame: Frame, boxes: NDArray[np.generic], box_format: pb.BoxFormat, min_size: float
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return boxes where they go, clipped, and which of them are large enough to be kept.

    Args:
        frame: What becomes of the image.
        boxes: ``(boxes, 4)``.
        box_format: What the numbers are.
        min_size: Least width and height of a box that is kept.
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
    """Return an image of a size of which nothing but that is known."""
    whole: Box = (0, 0, height, width)
    nothing = np.broadcast_to(np.zeros((), np.uint8), (height, width, 1))
    return Frame(nothing, whole, (height, width), whole)
