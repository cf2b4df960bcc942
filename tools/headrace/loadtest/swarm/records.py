"""Record a few numbers and two digests of the sample ids for each batch.

Both digests are sums over samples modulo 2^64, so they add up over ranks and batches for any world
size:

- ``id_sum`` adds a hash of each sample id: equal sums mean equal multisets of samples;
- ``order_sum`` adds a hash of each sample id, epoch and position: equal sums mean the same samples
  at the same positions.

The hash is the finalizer of SplitMix64, so different runs have equal sums with a probability of
about 2^-64. *Source*: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RECORD = np.dtype(
    [
        ("job", "<i4"),
        ("generation", "<i4"),
        ("rank", "<i4"),
        ("pad_count", "<i4"),
        ("epoch", "<i8"),
        ("position", "<i8"),
        ("sample_count", "<i8"),
        ("payload_bytes", "<i8"),
        ("id_sum", "<u8"),
        ("order_sum", "<u8"),
        ("at_s", "<f8"),
        ("wait_s", "<f8"),
    ]
)
"""One batch of one rank. ``at_s`` is time.time(), and ``sample_count`` excludes pads."""

Records = NDArray[np.void]

_GOLDEN = 0x9E3779B97F4A7C15
_CHUNK = 1 << 20


class Recorder:
    """A growing array of records, to which one thread appends."""

    def __init__(self) -> None:
        """Make an empty recorder."""
        self._records: Records = np.empty(256, dtype=RECORD)
        self._count = 0

    def append(self, values: tuple[float, ...]) -> None:
        """Append a record, with values in the order of `RECORD`."""
        if self._count == self._records.size:
            self._records = np.concatenate([self._records, np.empty_like(self._records)])
        self._records[self._count] = values
        self._count += 1

    def records(self, start: int = 0) -> Records:
        """Return a copy of the records from ``start`` on; safe from any thread."""
        count = self._count  # read first, because a new array holds at least this many
        return self._records[start:count].copy()


def id_sum(sample_ids: NDArray[np.int64]) -> int:
    """Return the digest of a multiset of samples."""
    return int(_mix(sample_ids.astype(np.uint64)).sum(dtype=np.uint64))


def order_sum(sample_ids: NDArray[np.int64], *, epoch: int, start: int) -> int:
    """Return the digest of samples at the positions ``start``, ``start`` + 1, … of an epoch."""
    positions = np.arange(start, start + sample_ids.size, dtype=np.uint64)
    keys = _mix(_mix(positions) + np.uint64(epoch))
    return int(_mix(sample_ids.astype(np.uint64) ^ keys).sum(dtype=np.uint64))


def id_sum_of_range(sample_count: int) -> int:
    """Return the digest of the samples [0, ``sample_count``)."""
    parts = (
        id_sum(np.arange(start, min(start + _CHUNK, sample_count), dtype=np.int64))
        for start in range(0, sample_count, _CHUNK)
    )
    return sum(parts) % (1 << 64)


def total(sums: NDArray[np.uint64] | Sequence[int]) -> int:
    """Return the sum of digests."""
    return int(np.asarray(sums, dtype=np.uint64).sum(dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = values + np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
