"""Turn samples into the bytes of batches: measure several, then write them.

Two writers make the same bytes. `NumpyWriter` takes any samples; `CompiledWriter` takes only
samples in pinned blocks, and needs the kernels. A single batch is the case n=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.payload import PayloadLayout
from headrace.server.batch.targets import Target
from headrace.server.cache.gather import Rows

_Rows_contra = TypeVar("_Rows_contra", bound=Rows, contravariant=True)


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

    @classmethod
    def of(cls, layouts: Sequence[PayloadLayout]) -> Measured:
        """Combine layouts, one for each batch."""
        return cls(
            np.array([layout.starts for layout in layouts], np.int64),
            np.array([layout.lengths for layout in layouts], np.int64),
            [layout.lengths for layout in layouts],
            [layout.size for layout in layouts],
        )


class BatchWriter(Protocol[_Rows_contra]):
    """Writes the batches of one stream.

    Not thread-safe: `write` writes the batches that were measured last.
    """

    def measure(self, rows: _Rows_contra, row_count: int, batch_count: int) -> Measured:
        """Lay out batches with equal numbers of rows.

        Args:
            rows: The samples, batch after batch.
            row_count: Number of samples of all batches.
            batch_count: Number of batches.
        """

    def write(
        self,
        rows: _Rows_contra,
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
