"""Write payloads in Python, buffer after buffer, into one place or into several parts.

Contract:

1. The payload is written in order, each buffer at its start. Gaps are zeroed, so that equal
   requests give equal bytes.
2. Every byte is hashed once: a payload in one place at its end, one in several parts while it is
   written, when its bytes are in the processor's caches.
3. The memory that `take` or `take_rows` returned is written before any other call.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.server.batch.targets import Parts, Target, writable

# Bytes gathered outside their place at a time, so that they stay in the second-level cache.
_STRIP_BYTES = 256 << 10


class PayloadOut(Protocol):
    """The destination of one payload; the contract is above."""

    def take(self, start: int, size: int) -> NDArray[np.uint8]:
        """Return the memory for the next bytes ``[start, start + size)`` of the payload."""

    def take_rows(self, start: int, count: int, row_bytes: int) -> Sequence[NDArray[np.uint8]]:
        """Return the memory of each row from ``start`` on; rows may be written in any order."""

    def put(self, start: int, content: NDArray[np.uint8]) -> None:
        """Write the next bytes, which start at ``start``."""

    def end(self) -> None:
        """Write the hash; call it when the whole payload is written."""


def payload_out(target: Target) -> PayloadOut:
    """Return the destination of a target's payload."""
    *_, parts = target
    return _WholeOut(target) if parts is None else PartsOut(parts)


class _WholeOut:
    """A payload in one place."""

    def __init__(self, target: Target) -> None:
        head, address, size, self._hash_at, _ = target
        whole = writable(address - len(head), len(head) + size)
        if head:
            whole[: len(head)] = memoryview(head)
        self._payload = whole[len(head) :]
        self._end = 0

    def take(self, start: int, size: int) -> NDArray[np.uint8]:
        if self._end < start:
            self._payload[self._end : start] = 0
        self._end = start + size
        return self._payload[start : self._end]

    def take_rows(self, start: int, count: int, row_bytes: int) -> Sequence[NDArray[np.uint8]]:
        return _rows(self.take(start, count * row_bytes), count, row_bytes)

    def put(self, start: int, content: NDArray[np.uint8]) -> None:
        self.take(start, content.size)[:] = content

    def end(self) -> None:
        if self._hash_at:
            write_hash(writable(self._hash_at, 8), xxhash.xxh3_64_intdigest(self._payload.data))


class PartsOut:
    """A payload in several places."""

    def __init__(self, target: Parts) -> None:
        self._target = target
        self._left = iter(target.parts)
        self._part = next(self._left)
        self._at = self._end = 0
        self._taken = np.empty(0, np.uint8)
        # The pieces that `take_rows` returned, and whether each is in its place already.
        self._pieces: list[tuple[NDArray[np.uint8], bool]] = []
        self._hash = xxhash.xxh3_64()

    def take(self, start: int, size: int) -> NDArray[np.uint8]:
        self._flush(start)
        self._taken = np.empty(size, np.uint8)
        return self._taken

    def take_rows(self, start: int, count: int, row_bytes: int) -> Sequence[NDArray[np.uint8]]:
        """Return memory in the parts, and temporary memory for rows that span two parts."""
        self._flush(start)
        rows: list[NDArray[np.uint8]] = []
        left = iter(self._target.parts)
        part, at = self._part, self._at
        while next(left) is not part:
            pass
        while len(rows) < count:
            fitting = min((part.size - at) // row_bytes, count - len(rows))
            if fitting:
                piece = part[at : at + fitting * row_bytes]
                rows += _rows(piece, fitting, row_bytes)
                self._pieces.append((piece, True))
                at += piece.size
            if len(rows) < count:
                rows.append(np.empty(row_bytes, np.uint8))
                self._pieces.append((rows[-1], False))
                at += row_bytes
                while at > part.size:
                    at -= part.size
                    part = next(left)
        return rows

    def put(self, start: int, content: NDArray[np.uint8]) -> None:
        self._flush(start)
        self._write(np.ascontiguousarray(content))

    def end(self) -> None:
        self._flush(self._end)
        write_hash(self._target.hash_to, self._hash.intdigest())

    def _flush(self, start: int) -> None:
        """Write what was taken, and zeros up to the start of the next buffer."""
        taken, self._taken = self._taken, self._taken[:0]
        self._write(taken)
        pieces, self._pieces = self._pieces, []
        for piece, is_there in pieces:
            self._write(piece, is_there=is_there)
        if self._end < start:
            self._write(np.zeros(start - self._end, np.uint8))

    def _write(self, content: NDArray[np.uint8], *, is_there: bool = False) -> None:
        self._end += content.size
        for first in range(0, content.size, _STRIP_BYTES):
            strip = content[first : first + _STRIP_BYTES]
            self._hash.update(strip.data)
            while strip.size:
                if self._at == self._part.size:
                    self._part, self._at = next(self._left), 0
                here = min(strip.size, self._part.size - self._at)
                if not is_there:
                    self._part[self._at : self._at + here] = strip[:here]
                self._at, strip = self._at + here, strip[here:]


def write_whole(target: Parts, size: int, write: Callable[[Sequence[Target]], None]) -> None:
    """Write a payload into one place, and copy it from there into its parts.

    Args:
        target: The parts.
        size: Bytes of the payload.
        write: Writes the payload.
    """
    whole = np.empty(size, np.uint8)
    write([(b"", whole.ctypes.data, size, 0, None)])
    out = PartsOut(target)
    out.put(0, whole)
    out.end()


def _rows(whole: NDArray[np.uint8], count: int, row_bytes: int) -> list[NDArray[np.uint8]]:
    return list(whole.reshape(count, row_bytes))


def write_hash(to: NDArray[np.uint8], found: int) -> None:
    """Write the hash of a payload into its place in a message."""
    to[:] = memoryview(found.to_bytes(8, "little"))
