"""Turn samples into the bytes of batches: measure several, then write them.

A single batch is the case n=1. `CompiledWriter` writes samples, and `CompiledRows` packed rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.server.batch.targets import Target
from headrace.server.cache.gather import BlockRows


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


class BatchWriter(Protocol):
    """Writes the batches of one stream.

    Not thread-safe: `write` writes the batches that were measured last.
    """

    def measure(self, rows: BlockRows, row_count: int, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows.

        Args:
            rows: The samples, batch after batch.
            row_count: Number of samples of all batches.
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
            sample_ids: ``(samples,) int64``: the sample ids; ``(samples, 2)`` in mixtures.
            measured: The result of `measure`.
            targets: Where to write each batch; every byte of its payload is written.

        Raises:
            InternalError: The tables of the cache point outside it.
        """
