"""Draw an order."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.labels import StoredLabels, read_labels
from headrace.order import Order
from headrace.page.data.media import File, raster
from headrace.storage import OpenDataset

MAX_BYTES: Final = 64 << 20
MAX_MEASURED: Final = 1 << 21
"""The maximum number of samples to measure label by label, which takes a third of a second."""
_WIDTH, _HEIGHT = 560, 280
_POINTS: Final = 60_000


def labels_of(dataset: OpenDataset, column: str) -> StoredLabels | None:
    """Read the labels of a dataset, at most `MAX_BYTES`; None if it has too many samples."""
    if dataset.sample_count > MAX_MEASURED:
        return None
    return read_labels(dataset, column, max_bytes=MAX_BYTES, progress=nullcontext)


def picture_of(order: Order, labels: StoredLabels | None, *, epoch: int) -> File:
    """Draw an epoch from left to right, with labels or places in storage from bottom to top."""
    count = order.sample_count
    positions = np.unique(np.linspace(0, count - 1, min(_POINTS, count)).astype(np.int64))
    ids = order.at(epoch, positions)
    values, value_count = ids, count
    if labels is not None:
        values, value_count = labels.labels[ids], int(labels.labels.max()) + 1
    x, y = _pixels(positions, count, _WIDTH), _pixels(values, value_count, _HEIGHT)
    points = np.bincount(y * _WIDTH + x, minlength=_WIDTH * _HEIGHT).reshape(_HEIGHT, _WIDTH)
    shades = np.sqrt(points / max(points.max(), 1))[::-1]
    colours = np.empty((_HEIGHT, _WIDTH, 4), np.uint8)
    colours[..., :3] = (31, 111, 235)
    colours[..., 3] = (shades * 255).astype(np.uint8)
    return raster(colours)


def _pixels(values: NDArray[np.int64], value_count: int, pixels: int) -> NDArray[np.int64]:
    # As floats, since a product of two counts may exceed 63 bits.
    return np.minimum((values / value_count * pixels).astype(np.int64), pixels - 1)
