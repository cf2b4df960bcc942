"""Decode deletion vectors, which Delta and Iceberg store in the same way.

Source: Delta's protocol, "Deletion Vector Format", and Iceberg's ``deletion-vector-v1``: a magic
number and a 64-bit roaring bitmap in its portable form; in a file, with their length before and
their CRC-32 behind them.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ConfigurationError

_MAGIC = b"\xd1\xd3\x39\x64"
_NUMBER_BYTES = 4
FRAME_BYTES = 2 * _NUMBER_BYTES
"""What a file has around a vector: its length and its checksum."""
_MAX_ROWS = 1 << 27  # 1 GiB of memory: a few bytes can name any number of rows


def framed_rows(part: bytes) -> NDArray[np.int64]:
    """Return the rows of a vector with its length and its checksum.

    Raises:
        ValueError: It is damaged, or names too many rows.
    """
    inner = part[_NUMBER_BYTES:-_NUMBER_BYTES]
    length, crc = part[:_NUMBER_BYTES], part[-_NUMBER_BYTES:]
    if int.from_bytes(length, "big") != len(inner) or int.from_bytes(crc, "big") != zlib.crc32(
        inner
    ):
        raise ValueError("its length or its checksum is wrong")
    return vector_rows(inner)


def vector_rows(content: bytes) -> NDArray[np.int64]:
    """Return the rows of a vector, ascending.

    Raises:
        ValueError: It is damaged, or names too many rows.
        ConfigurationError: pyroaring is not installed.
    """
    try:
        from pyroaring import BitMap64  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise ConfigurationError(
            "deletion vectors need the pyroaring package: pip install 'headrace[delta]'"
        ) from error
    if content[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it is no deletion vector")
    bitmap = BitMap64.deserialize(content[len(_MAGIC) :])
    if len(bitmap) > _MAX_ROWS:
        raise ValueError(f"it names {len(bitmap)} rows, and at most {_MAX_ROWS} are read")
    return np.array(bitmap, np.int64)
