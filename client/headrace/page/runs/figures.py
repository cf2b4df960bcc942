"""Measure the cost and the evenness of an order like `headrace shuffle`, and draw it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.evenness import Evenness, measure
from headrace.cli.stored.labels import StoredLabels, read_labels
from headrace.order import Order
from headrace.page.data.media import File, raster
from headrace.storage import OpenDataset

MOST_BYTES: Final = 64 << 20
MOST_MEASURED: Final = 1 << 21
"""The most samples of an epoch to measure label by label, in a third of a second."""
_WIDE, _HIGH = 560, 280
_POINTS: Final = 60_000
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Figures:
    """The cost and the evenness of an order.

    Attributes:
        memory_bytes: The bytes shuffled together.
        is_uniform: Whether every order of the epoch is as likely as any other.
        reads_per_gib: Reads of the store.
        first_batch_bytes: The bytes to read before the first batch.
        evenness: The evenness of classes; None if it was not measured.
    """

    memory_bytes: int
    is_uniform: bool
    reads_per_gib: float
    first_batch_bytes: int
    evenness: Evenness | None


def labels_of(dataset: OpenDataset, column: str) -> StoredLabels | None:
    """Return the labels of a dataset, reading at most `MOST_BYTES`; None for too many samples."""
    if dataset.sample_count > MOST_MEASURED:
        return None
    return read_labels(dataset, column, max_bytes=MOST_BYTES, progress=nullcontext)


def figures(
    dataset: OpenDataset, order: Order, labels: StoredLabels | None, *, epoch: int, batch: int
) -> Figures:
    """Return the cost of an order and the evenness of an epoch."""
    count, spec = order.sample_count, order.spec
    first, _ = dataset.locate(order.sample_ids(epoch, 0, min(batch, count)))
    memory = min(order.memory_samples * spec.lanes, count) * dataset.raw_bytes // count
    reads = order.run_count if spec.shuffle_bytes > 0 else count
    even = None if labels is None else measure(labels.labels[order.sample_ids(epoch, 0, count)])
    return Figures(
        memory,
        order.memory_samples >= count,
        reads / max(dataset.stored_bytes / _GIB, 1e-9),
        int(dataset.block_stored_bytes(np.unique(first)).sum()),
        even,
    )


def picture_of(order: Order, labels: StoredLabels | None, *, epoch: int) -> File:
    """Draw an epoch from left to right, with each sample's class or place in storage as height."""
    count = order.sample_count
    positions = np.unique(np.linspace(0, count - 1, min(_POINTS, count)).astype(np.int64))
    ids = order.at(epoch, positions)
    values, most = (ids, count) if labels is None else (labels.labels[ids], _most(labels))
    across, up = _places(positions, count, _WIDE), _places(values, most, _HIGH)
    points = np.bincount(up * _WIDE + across, minlength=_WIDE * _HIGH).reshape(_HIGH, _WIDE)
    shades = np.sqrt(points / max(points.max(), 1))[::-1]
    colours = np.empty((_HIGH, _WIDE, 4), np.uint8)
    colours[..., :3] = (31, 111, 235)
    colours[..., 3] = (shades * 255).astype(np.uint8)
    return raster(colours)


def _most(labels: StoredLabels) -> int:
    return int(labels.labels.max()) + 1


def _places(values: NDArray[np.int64], most: int, pixels: int) -> NDArray[np.int64]:
    # In floats, since a product of two counts may exceed 63 bits.
    return np.minimum((values / most * pixels).astype(np.int64), pixels - 1)
