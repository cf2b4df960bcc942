"""Turn samples into the bytes of batches: measure several, then write them.

Two writers make the same bytes: `NumpyWriter` takes samples wherever they lie, `CompiledWriter`
only samples in pinned blocks, if the kernels are installed. A single batch is the case n=1.
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
    """Where the buffers of batches lie in their payloads.

    Attributes:
        begins: ``(batches, buffers) int64``.
        lengths: ``(batches, buffers) int64``: their bytes.
        buffer_bytes: The sizes of the buffers of each batch; batches that are laid out alike share
            one object.
        sizes: Bytes of each payload.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    buffer_bytes: list[tuple[int, ...]]
    sizes: list[int]

    @classmethod
    def of(cls, layouts: Sequence[PayloadLayout]) -> Measured:
        """Return those of layouts, one for each batch."""
        return cls(
            np.array([layout.begins for layout in layouts], np.int64),
            np.array([layout.lengths for layout in layouts], np.int64),
            [layout.lengths for layout in layouts],
            [layout.size for layout in layouts],
        )


class BatchWriter(Protocol[_Rows_contra]):
    """Writes the batches of one stream.

    Not safe for several threads: `write` writes what was measured last.
    """

    def measure(self, rows: _Rows_contra, row_count: int, batch_count: int) -> Measured:
        """Lay out batches of equally many rows.

        Args:
            rows: Their samples, one batch after the other.
            row_count: Samples of all of them.
            batch_count: How many batches there are.
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
            sample_ids: ``(samples,) int64``: their ids; or ``(samples, 2)`` in mixtures.
            measured: The result of `measure`.
            targets: Where each batch goes; every byte of it is written.

        Raises:
            InternalError: The tables of the cache point outside of it.
        """
