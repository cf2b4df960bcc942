"""Turn samples into the bytes of batches: measure several, then write them.

A single batch is the case n=1. `CompiledWriter` writes samples, and `CompiledRows` packed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.order import Pieces
from headrace.server.batch.targets import Target
from headrace.server.cache.gather import BlockRows
from headrace.server.layout.block_layout import Projection

# Bytes of a row beyond its values while a batch is gathered: ids and places, and column spans.
ROW_BYTES = 64
SPAN_BYTES = 48


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """The layout of the payloads of batches.

    Attributes:
        starts: ``(batches, buffers) int64``: where each buffer starts in its payload.
        lengths: ``(batches, buffers) int64``: bytes of each buffer.
        buffer_bytes: The lengths of the buffers of each batch; batches with equal layouts share one
            object.
        sizes: Bytes of each payload.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    buffer_bytes: list[tuple[int, ...]]
    sizes: list[int]


class Read(Protocol):
    """The samples that were read for batches."""

    @property
    def item_ids(self) -> NDArray[np.int64]:
        """Return the items of the order, batch after batch."""

    @property
    def sample_ids(self) -> NDArray[np.int64]:
        """Return the samples, batch after batch."""

    @property
    def pieces(self) -> Pieces | None:
        """Return the pieces of them that items of the order are made of; None for all of each."""


class BatchWriter(Protocol):
    """Writes the batches of one stream.

    Not thread-safe: `write` writes the batches that were measured last.

    Attributes:
        row_bytes: Bytes of memory for each row, beyond its values, while batches are made.
    """

    row_bytes: int

    @property
    def projection(self) -> Projection:
        """The columns of the dataset that it reads."""

    def measure(self, rows: BlockRows, read: Read, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of items.

        Args:
            rows: The samples, batch after batch.
            read: Which samples they are.
            batch_count: Number of batches.
        """

    def write(
        self,
        rows: BlockRows,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, with their headers and hashes.

        Args:
            rows: The rows that were measured.
            sample_ids: ``(items,) int64``: the ids that batches show; ``(items, 2)`` in mixtures.
            measured: The result of `measure`.
            targets: Where to write each batch; every byte of its payload is written.

        Raises:
            InternalError: The tables of the cache point outside it.
        """
