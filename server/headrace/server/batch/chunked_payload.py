"""A payload that lies in several messages, hashed as it is written.

Contract:

1. The payload is written in order: who asks for a piece has written every byte before it.
2. Of a payload in several parts the hash is worked out while what is written is near the
   processor: by compiled code each 64 KiB of the spans that it copies, else when a part's piece is
   written. What is written within the first part alone waits for what follows.
3. The memory of the parts outlives `PayloadParts.end`; nobody here keeps it.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Protocol, TypeAlias, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.server.batch.compiled_batches import check_found
from headrace.server.kernels.loader import KERNELS, Loader

Pieces: TypeAlias = Sequence[NDArray[np.uint8]]
"""Where consecutive bytes of a payload go. Whoever goes through several has written each when he
takes the next."""


class PayloadParts:
    """Where a payload lies, and its hash so far; the contract is above.

    Args:
        parts: One for each message.
        part_bytes: Size of each but the last.
        kernels: The compiled functions, if they are there.
    """

    def __init__(
        self, parts: list[NDArray[np.uint8]], *, part_bytes: int, kernels: Loader = KERNELS
    ) -> None:
        self._parts = parts
        self.part_bytes = part_bytes
        self._kernels = kernels
        self._hash: _Hash | None = None

    def pieces(self, begin: int, end: int) -> Pieces:
        """Return where the bytes ``[begin, end)`` go, in one array or several."""
        if end <= self.part_bytes:
            return (self._parts[0][begin:end],)
        return PartPieces(self, begin, end)

    def part(self, index: int) -> NDArray[np.uint8]:
        """Return one part."""
        return self._parts[index]

    def hash(self) -> _Hash:
        """Return what hashes the payload; call it where that lies in several parts."""
        if self._hash is None:
            kernels = self._kernels.module
            if kernels is not None and not self.part_bytes % kernels.BLOCK_BYTES:
                self._hash = CompiledHash(kernels, self._parts, part_bytes=self.part_bytes)
            else:
                self._hash = _LibraryHash(self._parts, part_bytes=self.part_bytes)
        return self._hash

    def end(self) -> int:
        """Return the hash, when all is written, and let the parts go."""
        if len(self._parts) == 1:
            found = xxhash.xxh3_64_intdigest(self._parts[0].data)
        else:
            found = self.hash().digest()
        self._hash = None
        self._parts.clear()
        return found


class PartPieces(Sequence[NDArray[np.uint8]]):
    """Places in a payload of several parts, which is hashed as it is written."""

    def __init__(self, payload: PayloadParts, begin: int, end: int) -> None:
        self._payload = payload
        self._begin = begin
        self._end = end
        size = payload.part_bytes
        self._edges = [
            (index, max(0, begin - index * size), min(size, end - index * size))
            for index in range(begin // size, -(-end // size))
        ]

    def __len__(self) -> int:
        return len(self._edges)

    @overload
    def __getitem__(self, index: int) -> NDArray[np.uint8]: ...
    @overload
    def __getitem__(self, index: slice) -> list[NDArray[np.uint8]]: ...
    def __getitem__(self, index: int | slice) -> NDArray[np.uint8] | list[NDArray[np.uint8]]:
        if isinstance(index, slice):
            return [self._payload.part(part)[begin:end] for part, begin, end in self._edges[index]]
        part, begin, end = self._edges[index]
        return self._payload.part(part)[begin:end]

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        at = self._begin
        for place in self[:]:
            yield place
            at += place.size
            self._payload.hash().add(at)

    def copy_spans(
        self, memory: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> bool:
        """Fill all of this with spans of bytes, back to back, by compiled code.

        Args:
            memory: Where they lie, ``(size,) uint8``.
            begins: ``(spans,) int64``, in bytes.
            lengths: ``(spans,) int64``, in bytes.

        Returns:
            Whether such code hashes this payload; if not, nothing is done.

        Raises:
            InternalError: Not all lie in the memory, or they are more bytes or fewer.
        """
        running = self._payload.hash()
        if not isinstance(running, CompiledHash):
            return False
        check_found(
            is_found=running.copy_spans(memory, begins, lengths, at=self._begin, end=self._end)
        )
        return True


class _Hash(Protocol):
    """Works out the hash of a payload in several parts."""

    def add(self, end: int) -> None:
        """Hash what is written up to there."""

    def digest(self) -> int:
        """Return the hash, when all is written."""


class _LibraryHash:
    """Asks the library."""

    def __init__(self, parts: list[NDArray[np.uint8]], *, part_bytes: int) -> None:
        self._parts = parts
        self._part_bytes = part_bytes
        self._hashed = 0
        self._digest = xxhash.xxh3_64()

    def add(self, end: int) -> None:
        """Hash what is written up to there."""
        while self._hashed < end:
            index, first = divmod(self._hashed, self._part_bytes)
            last = min(self._part_bytes, end - index * self._part_bytes)
            self._digest.update(self._parts[index][first:last].data)
            self._hashed = index * self._part_bytes + last

    def digest(self) -> int:
        """Return the hash, when all is written."""
        self.add(sum(part.size for part in self._parts))
        return self._digest.intdigest()


class CompiledHash:
    """Works it out by compiled code, which copies too."""

    def __init__(
        self, kernels: ModuleType, parts: list[NDArray[np.uint8]], *, part_bytes: int
    ) -> None:
        self._kernels = kernels
        self._parts = parts
        self._size = sum(part.size for part in parts)
        self._sums: NDArray[np.uint64] = kernels.FIRST_SUMS.copy()
        self._hashed = np.zeros(1, np.int64)
        self._place = (
            np.array([part.ctypes.data for part in parts], np.int64),
            part_bytes,
            self._size,
        )

    def add(self, end: int) -> None:
        """Hash what is written up to there, as far as it makes whole blocks."""
        self._kernels.hash_parts(*self._place, end, self._sums, self._hashed)

    def copy_spans(
        self,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        *,
        at: int,
        end: int,
    ) -> bool:
        """Fill ``[at, end)`` of the payload; return whether the spans lie right and do."""
        is_found: bool = self._kernels.copy_spans_to_parts(
            memory,
            np.ascontiguousarray(begins),
            np.ascontiguousarray(lengths),
            *self._place,
            at,
            end,
            self._sums,
            self._hashed,
        )
        return is_found

    def digest(self) -> int:
        """Return the hash, when all is written."""
        self.add(self._size)
        # The last block, and as much before it as its last stripe may need.
        begin = max(0, int(self._hashed[0]) - self._kernels.BLOCK_BYTES)
        first, left_out = divmod(begin, self._place[1])
        tail = np.concatenate([self._parts[first][left_out:], *self._parts[first + 1 :]])
        at = int(self._hashed[0]) - begin
        return int(self._kernels.end_hash(tail, at, self._size, self._sums))
