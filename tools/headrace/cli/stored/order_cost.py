"""Measure what an order costs, and how evenly it distributes labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.cli.stored.evenness import Evenness, measure
from headrace.order import Order
from headrace.storage import OpenDataset

_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class OrderCost:
    """The cost and the evenness of an order.

    Attributes:
        memory_bytes: The bytes that are shuffled together.
        is_uniform: Whether all permutations of an epoch are equally likely, except of epoch 0 if
            that has a ramp.
        reads_per_gib: Reads of the store per GiB.
        first_batch_bytes: The bytes to read before the first batch of epoch 0.
        evenness: The evenness of labels; None if not measured.
    """

    memory_bytes: int
    is_uniform: bool
    reads_per_gib: float
    first_batch_bytes: int
    evenness: Evenness | None


def order_cost(
    dataset: OpenDataset,
    order: Order,
    labels: NDArray[np.int64] | None,
    *,
    batch_size: int,
    epoch: int = 1,
) -> OrderCost:
    """Return the cost of an order, and the evenness of an epoch if labels by sample are given."""
    count, spec = order.sample_count, order.spec
    first, _ = dataset.locate(order.sample_ids(0, 0, min(batch_size, count)))
    # Without enough memory, a uniform order needs one read per sample.
    reads = order.run_count if spec.shuffle_bytes > 0 else count
    return OrderCost(
        min(order.memory_samples * spec.lanes, count) * dataset.raw_bytes // count,
        order.memory_samples >= count,
        reads / max(dataset.stored_bytes / _GIB, 1e-9),
        int(dataset.block_stored_bytes(np.unique(first)).sum()),
        None if labels is None else measure(labels[order.sample_ids(epoch, 0, count)]),
    )
