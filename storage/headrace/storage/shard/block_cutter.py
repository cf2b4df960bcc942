"""Cut a stream of samples into even blocks and shards, in one pass and with bounded memory.

The number of samples in a block is chosen for each shard from its first samples, about 16 blocks of
them, so that blocks have about the requested bytes. If the sizes of samples later change so much
that blocks would become far too large or small, the shard ends and the next one chooses again. The
cut depends only on the samples, not on the batches in which they arrive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.storage.shard.block import MAX_BLOCK_BYTES
from headrace.storage.shard.sample_bytes import sample_bytes

MOST_TIMES = 4
"""A block has at most this many times the requested bytes, in addition to its largest sample."""

_SEEN_BLOCKS = 16  # enough to know the mean of texts or images of one kind to some percent
_SEEN_BYTES = 16 << 20  # what a writer may hold for this, unless one block is larger
# If blocks would be filled within these bounds, a shard keeps the number of the shard before.
_LEAST_NEAR, _MOST_NEAR = 0.8, 1.05
_GRID_BITS = 5  # so that parts that are cut independently mostly agree too


@dataclass(frozen=True, slots=True)
class Cut:
    """One block.

    Attributes:
        batches: The samples of the block, in order; at least one batch, none of them empty.
        raw_bytes: The raw bytes of the samples.
        starts_shard: Whether a shard starts with this block.
    """

    batches: list[pa.RecordBatch]
    raw_bytes: int
    starts_shard: bool


class BlockCutter:
    """Cuts appended samples; holds the samples that it chooses by, or one block, and one batch.

    Args:
        block_bytes: The approximate raw bytes of a block.
        shard_bytes: The most raw bytes of a shard, unless a single sample has more; `None` ends
            shards only where sizes change.
    """

    def __init__(self, *, block_bytes: int, shard_bytes: int | None = None) -> None:
        self._block_bytes = block_bytes
        self._seen_bytes = max(block_bytes, min(_SEEN_BLOCKS * block_bytes, _SEEN_BYTES))
        self._most_bytes = min(MOST_TIMES * block_bytes, MAX_BLOCK_BYTES)
        self._shard_bytes = shard_bytes
        self._held_bytes = min(shard_bytes or 1 << 62, MOST_TIMES * self._seen_bytes)
        self._shard_blocks = None if shard_bytes is None else max(1, shard_bytes // block_bytes)
        self._pending = _Pending()
        self._samples = 0  # in a block of this shard; 0 if not chosen yet
        self._before = 0  # the same for the shard before
        self._cut: list[int] = []  # bytes of this shard's blocks, with large samples capped
        self._used = 0

    def append(self, batch: pa.RecordBatch) -> Iterator[Cut]:
        """Add the samples of a batch and yield the blocks that are full now."""
        if batch.num_rows:
            self._pending.append(batch)
            if self._pending.raw_bytes >= self._block_bytes or self._is_full():
                yield from self._blocks(final=False)

    def close(self) -> Iterator[Cut]:
        """Yield the remaining samples as blocks."""
        yield from self._blocks(final=True)

    def _is_full(self) -> bool:
        return 0 < self._samples <= self._pending.count

    def _blocks(self, *, final: bool) -> Iterator[Cut]:
        sizes = self._pending.sizes()
        start = 0
        while start < len(sizes):
            ahead = sizes[start:]
            if not self._samples and not self._choose(ahead, final=final):
                break
            count, ends = self._fitting(ahead[: self._samples])
            if not ends and count < self._samples and not final:
                break
            raw_bytes = int(ahead[:count].sum())
            if self._cut and self._is_over(raw_bytes):
                self._end_shard()
                continue
            yield Cut(self._pending.take(count), raw_bytes, not self._cut)
            start += count
            self._used += raw_bytes
            self._cut.append(int(np.minimum(ahead[:count], self._block_bytes).sum()))
            if ends or self._are_small():
                self._end_shard()

    def _choose(self, sizes: NDArray[np.int64], *, final: bool) -> bool:
        """Choose the number of samples in a block, if enough of the shard is known."""
        ends = np.cumsum(np.minimum(sizes, self._block_bytes))
        count = int(np.searchsorted(ends, self._seen_bytes))
        count = min(count, int(np.searchsorted(np.cumsum(sizes), self._held_bytes)))
        if count >= len(sizes):
            if not final:
                return False
            count = len(sizes) - 1
        total = int(ends[count])
        before = self._before * total / ((count + 1) * self._block_bytes)
        if _LEAST_NEAR <= before <= _MOST_NEAR:
            self._samples = self._before
        else:
            self._samples = on_grid(_fitting_mean(total, count + 1, self._block_bytes))
        return True

    def _fitting(self, sizes: NDArray[np.int64]) -> tuple[int, bool]:
        """Return how many samples a block can hold, and whether its shard must end with it."""
        ends = np.cumsum(sizes)
        fits = ends - np.maximum.accumulate(sizes) <= self._most_bytes
        fits &= ends <= min(MAX_BLOCK_BYTES, self._shard_bytes or MAX_BLOCK_BYTES)
        fits[0] = True
        count = len(sizes) if fits.all() else int(fits.argmin())
        return count, count < len(sizes)

    def _is_over(self, raw_bytes: int) -> bool:
        """Return whether the shard has no room for one more block."""
        if self._shard_bytes is None or self._shard_blocks is None:
            return False
        return len(self._cut) >= self._shard_blocks or self._used + raw_bytes > self._shard_bytes

    def _are_small(self) -> bool:
        last = self._cut[-_SEEN_BLOCKS:]
        full = _SEEN_BLOCKS * self._block_bytes
        return len(last) == _SEEN_BLOCKS and MOST_TIMES * sum(last) < full

    def _end_shard(self) -> None:
        self._before, self._samples, self._used, self._cut = self._samples, 0, 0, []


def even_starts(sizes: NDArray[np.int64], *, block_bytes: int) -> NDArray[np.int64] | None:
    """Return where even blocks start, and where the last one ends: ``(blocks + 1,) int64``.

    Args:
        sizes: ``(samples,)``, raw bytes of all samples of a shard, at least one.
        block_bytes: The approximate raw bytes of a block.

    Returns:
        The edges; `None` if a block would exceed `MOST_TIMES` this size, in addition to its
        largest sample.
    """
    clipped = int(np.minimum(sizes, block_bytes).sum())
    samples = on_grid(_fitting_mean(clipped, len(sizes), block_bytes))
    starts = np.arange(0, len(sizes), samples)
    beside = np.add.reduceat(sizes, starts) - np.maximum.reduceat(sizes, starts)
    if int(beside.max()) > MOST_TIMES * block_bytes:
        return None
    return np.append(starts, len(sizes))


def _fitting_mean(total_bytes: int, count: int, block_bytes: int) -> int:
    """Return how many samples a block holds, from the mean size of the samples seen."""
    return max(1, block_bytes * count // max(total_bytes, count))


def on_grid(samples: int) -> int:
    """Round a number down to one of 16 values between a power of two and the next."""
    step = 1 << max(0, samples.bit_length() - _GRID_BITS)
    return samples // step * step


class _Pending:
    """Samples that are not in a block yet."""

    def __init__(self) -> None:
        self.count = 0
        self.raw_bytes = 0
        self._batches: deque[tuple[pa.RecordBatch, NDArray[np.int64]]] = deque()

    def append(self, batch: pa.RecordBatch) -> None:
        sizes = sample_bytes(batch)
        self._batches.append((batch, sizes))
        self.count += len(sizes)
        self.raw_bytes += int(sizes.sum())

    def sizes(self) -> NDArray[np.int64]:
        return np.concatenate([np.empty(0, np.int64), *(sizes for _, sizes in self._batches)])

    def take(self, count: int) -> list[pa.RecordBatch]:
        taken = []
        while count:
            batch, sizes = self._batches.popleft()
            some = min(count, len(sizes))
            taken.append(batch.slice(0, some))
            if some < len(sizes):
                self._batches.appendleft((batch.slice(some), sizes[some:]))
            count -= some
            self.count -= some
            self.raw_bytes -= int(sizes[:some].sum())
        return taken
