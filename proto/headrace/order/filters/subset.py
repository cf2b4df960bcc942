"""The samples of a dataset that a filter keeps, and the shard table of what is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.order.basics.segments import starts_of
from headrace.order.samples.shard_table import ShardTable
from headrace.order.samples.skips import Skips

_Array = NDArray[np.int64]

# Ids are held as two bytes each, grouped by their upper bits.
_LOW_BITS: Final = 16
_LOW: Final = 1 << _LOW_BITS
# In shards whose blocks differ in size, stretches of this many bytes stand for blocks.
_STRETCH_BYTES: Final = 1 << 18
# Samples that are processed together, which bounds memory.
_TOGETHER: Final = 1 << 20


class Subset:
    """The samples of a dataset that are kept, numbered from 0 in storage order.

    It takes two bytes for each kept sample. To find one, it searches at most 2^16 of them.

    Args:
        bits: A bit for each sample of the dataset, 1 where it is kept, the lowest bit of each byte
            first: ``(ceil(sample_count / 8),) uint8``.
        sample_count: Samples of the dataset.

    Attributes:
        sample_count: Samples of the dataset.
        count: How many samples are kept.
        digest: BLAKE2b-128 digest that identifies them: 32 hexadecimal digits (docs/order.md).

    Raises:
        BadArgumentError: There are not as many bits as samples.

    Example:
        >>> import numpy as np
        >>> kept = Subset(np.packbits([0, 1, 1, 0, 1], bitorder="little"), 5)
        >>> kept.sample_ids(np.array([0, 2]))
        array([1, 4])
        >>> kept.numbers(np.array([4, 3]))
        array([ 2, -1])
    """

    def __init__(self, bits: NDArray[np.uint8], sample_count: int) -> None:
        if bits.size != -(-sample_count // 8):
            raise BadArgumentError(
                f"{bits.size} bytes of bits for {sample_count} samples, must be one bit for each",
                field="bits",
            )
        self.sample_count: Final = sample_count
        parts = [
            np.flatnonzero(np.unpackbits(bits[at : at + _LOW // 8], bitorder="little"))
            for at in range(0, bits.size, _LOW // 8)
        ]
        self._starts = starts_of(np.array([part.size for part in parts], np.int64))
        self._lows = np.concatenate(
            [np.empty(0, np.uint16), *(part.astype(np.uint16) for part in parts)]
        )
        self.count: Final = int(self._lows.size)
        head = sample_count.to_bytes(8, "little")
        hashed = hashlib.blake2b(head, digest_size=16, person=b"headrace-kept")
        hashed.update(np.ascontiguousarray(bits).data)
        self.digest: Final = hashed.hexdigest()

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it takes."""
        return self._lows.nbytes + self._starts.nbytes

    def sample_ids(self, numbers: _Array) -> _Array:
        """Return the sample ids of kept samples.

        Args:
            numbers: ``(n,)``, each in [0, `count`).
        """
        parts = np.searchsorted(self._starts, numbers, side="right") - 1
        parts <<= _LOW_BITS
        parts |= self._lows[numbers]
        return parts

    def numbers(self, sample_ids: _Array) -> _Array:
        """Return the number of each sample among those kept; -1 for one that is not kept.

        Args:
            sample_ids: ``(n,)``, each in [0, `sample_count`).
        """
        places = self.before(sample_ids)
        found = places < self.count
        found[found] = self.sample_ids(places[found]) == sample_ids[found]
        return np.where(found, places, -1)

    def before(self, sample_ids: _Array) -> _Array:
        """Return how many kept samples come before each id, which is in [0, `sample_count`]."""
        parts = np.minimum(sample_ids >> _LOW_BITS, len(self._starts) - 2)
        if not self.count:
            return np.zeros_like(sample_ids)
        lows = sample_ids - (parts << _LOW_BITS)
        left, right = self._starts[parts].copy(), self._starts[parts + 1].copy()
        while (open_ := left < right).any():
            middle = (left + right) >> 1
            is_less = open_ & (self._lows[np.minimum(middle, self.count - 1)] < lows)
            left = np.where(is_less, middle + 1, left)
            right = np.where(open_ & ~is_less, middle, right)
        result: _Array = left
        return result

    def table(self, table: ShardTable) -> ShardTable:
        """Return the shard table of the kept samples, for an order (docs/order.md).

        Args:
            table: The dataset's shards.

        Raises:
            BadArgumentError: The shards are of another dataset.
        """
        if table.sample_count != self.sample_count:
            raise BadArgumentError(
                f"a filter of {self.sample_count} samples for {table.sample_count}; must be of the"
                " same dataset and version",
                field="table",
            )
        samples, raw = table.sample_counts, table.raw_bytes
        firsts = starts_of(samples)
        counts = np.diff(self.before(firsts))
        sample_bytes = np.maximum(-(-raw // np.maximum(samples, 1)), 1)
        blocks = np.zeros_like(samples) if table.block_samples is None else table.block_samples
        size = np.where(
            blocks > 0,
            np.minimum(blocks, np.maximum(samples, 1)),
            np.maximum(_STRETCH_BYTES // sample_bytes, 1),
        )
        touched = self._touched(firsts, size)
        # In floating point first, because a malicious table could overflow int64.
        is_less = touched * (size * 1.0) * sample_bytes < raw
        least = np.where(is_less, touched, 0) * np.where(is_less, size, 0)
        return ShardTable(counts, np.where(is_less, least * sample_bytes, raw) * (counts > 0))

    def skips(self, skips: Skips | None) -> Skips | None:
        """Return skips as numbers among the kept samples; those that are not kept are dropped."""
        if skips is None:
            return None
        numbers = self.numbers(skips.sample_ids)
        return Skips(numbers[numbers >= 0])

    def _touched(self, firsts: _Array, size: _Array) -> _Array:
        # Return how many stretches of each shard hold a kept sample.
        touched = np.zeros(len(size), np.int64)
        last = (-1, -1)
        for start in range(0, self.count, _TOGETHER):
            ids = self.sample_ids(np.arange(start, min(start + _TOGETHER, self.count)))
            shards = np.searchsorted(firsts, ids, side="right") - 1
            stretches = (ids - firsts[shards]) // size[shards]
            is_new = np.ones(len(ids), np.bool_)
            is_new[1:] = (shards[1:] != shards[:-1]) | (stretches[1:] != stretches[:-1])
            is_new[0] = last != (int(shards[0]), int(stretches[0]))
            last = (int(shards[-1]), int(stretches[-1]))
            touched += np.bincount(shards[is_new], minlength=len(size))
        return touched


def joined_digest(digests: Sequence[str]) -> str:
    """Return the digest that a token holds for a mixture's filters; empty without any filter.

    Args:
        digests: `Subset.digest` of each dataset; empty for one without a filter.
    """
    if not any(digests):
        return ""
    hashed = hashlib.blake2b(digest_size=16, person=b"headrace-kepts")
    for digest in digests:
        hashed.update(bytes.fromhex(digest) or bytes(16))
    return hashed.hexdigest()
