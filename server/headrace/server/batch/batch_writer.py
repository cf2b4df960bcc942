"""The one way from samples to the bytes of batches: measure several, then write them.

There are two writers, which make the same bytes: `NumpyWriter` knows samples wherever they lie, and
`CompiledWriter` those in pinned blocks, once the kernels are there. One batch is several with n=1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from headrace.server.batch.targets import Target
from headrace.server.cache.gather import Rows

_Rows_contra = TypeVar("_Rows_contra", bound=Rows, contravariant=True)


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Where the buffers of batches lie in their payloads.

    Attributes:
        begins: ``(batches, buffers) int64``.
        lengths: ``(batches, buffers) int64``: their bytes.
        buffer_bytes: The same of each batch; of batches that are laid out alike the same object.
        sizes: Bytes of each payload.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    buffer_bytes: list[tuple[int, ...]]
    sizes: list[int]


class BatchWriter(Protocol[_Rows_contra]):
    """Writes the batches of one stream.

    Not safe for several threads: what was measured last is what is written.
    """

    def measure(self, rows: _Rows_contra, row_count: int, batch_count: int) -> Measured:
        """Lay out batches of equally many rows.

        Args:
            rows: Their samples, one batch after the other.
            row_count: Samples of all of them.
            batch_count: How many they are.
        """

    def write(
        self,
        rows: _Rows_contra,
        sample_ids: NDArray[np.int64],
        measured: Measured,
        targets: Sequence[Target],
    ) -> None:
        """Write the batches that were measured last, their heads and their hashes.

        Args:
            rows: As they were measured.
            sample_ids: ``(samples,) int64``: their ids; or ``(samples, 2)`` in mixtures.
            measured: What was found.
            targets: Where each batch goes. All of it is written.

        Raises:
            InternalError: The tables of the cache point outside of it.
        """
