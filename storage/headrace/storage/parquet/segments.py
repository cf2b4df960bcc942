"""A file-like object with a few parts of a remote file in memory, for Arrow's reader."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Sequence

import pyarrow as pa

MAX_GAP_BYTES = 1 << 20
"""The largest gap to read instead of making another request; a store sends as much in the time of
one round trip.
"""


def coalesced(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ascending ranges ``[start, stop)`` that cover all ``ranges`` with few reads."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and start <= joined[-1][1] + MAX_GAP_BYTES:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return joined


class SegmentFile:
    """A seekable file with some of its bytes in memory; reading others is an error.

    Args:
        size: The size of the whole file in bytes.
        segments: The offset and the content of each part, ascending and disjoint.
    """

    def __init__(self, size: int, segments: Sequence[tuple[int, bytes]]) -> None:
        self.closed = False
        self._size = size
        self._starts = [start for start, _ in segments]
        self._buffers = [pa.py_buffer(content) for _, content in segments]
        self._position = 0

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return that it is."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def read_buffer(self, length: int) -> pa.Buffer:
        """Return the next bytes without a copy; Arrow calls this if it exists.

        Raises:
            OSError: The bytes are not all in one segment.
        """
        index = bisect_right(self._starts, self._position) - 1
        length = max(0, min(length, self._size - self._position))
        if index >= 0:
            start, buffer = self._position - self._starts[index], self._buffers[index]
            if start + length <= buffer.size:
                self._position += length
                return buffer.slice(start, length)
        raise OSError(
            f"bytes [{self._position}, {self._position + length}) belong to no column chunk"
        )

    def read(self, length: int = -1) -> bytes:
        """Return the next bytes."""
        wanted = self._size - self._position if length < 0 else length
        return self.read_buffer(wanted).to_pybytes()

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Release the content."""
        self.closed = True
        self._buffers = []
