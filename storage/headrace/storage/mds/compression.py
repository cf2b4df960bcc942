"""Compress and decompress whole shards."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

from headrace.storage.mds.damage import DamageError

_Codec: TypeAlias = Literal["bz2", "brotli", "gzip", "zstd"]


@dataclass(frozen=True, slots=True)
class Compression:
    """A compression, as named in an index.

    Attributes:
        text: Its name, such as ``zstd`` or ``zstd:7``.
        algorithm: The part before the colon.
        level: The part after the colon, or the algorithm's default; `None` if it has no levels.
    """

    text: str
    algorithm: str
    level: int | None

    @property
    def suffix(self) -> str:
        """Return the suffix of a compressed shard's name."""
        return f".{self.algorithm}"


@dataclass(frozen=True, slots=True)
class _Levels:
    low: int
    high: int
    default: int


_LEVELS: Mapping[str, _Levels | None] = {
    "br": _Levels(0, 11, 11),
    "bz2": _Levels(1, 9, 9),
    "gz": _Levels(0, 9, 9),
    "snappy": None,
    "zstd": _Levels(1, 22, 3),
}
_ARROW_NAMES: Mapping[str, _Codec] = {"br": "brotli", "bz2": "bz2", "gz": "gzip", "zstd": "zstd"}


def parse_compression(text: str) -> Compression:
    """Return the compression that ``text`` names.

    Raises:
        ValueError: There is no such algorithm or level.
    """
    algorithm, colon, level_text = text.partition(":")
    levels = _LEVELS.get(algorithm)
    if algorithm in _LEVELS and not colon:
        return Compression(text, algorithm, levels.default if levels else None)
    if levels and level_text.isascii() and level_text.isdigit() and len(level_text) <= 2:  # noqa: PLR2004 - no level has three digits
        level = int(level_text)
        if levels.low <= level <= levels.high:
            return Compression(text, algorithm, level)
    raise ValueError(
        f"compression {text[:100]!r} found, expected one of {', '.join(_LEVELS)}; the first three "
        "and the last may have a level, such as ':9'"
    )


def decompressed(stored: bytes, algorithm: str, *, raw_bytes: int) -> pa.Buffer:
    """Decompress a file, using no memory beyond ``raw_bytes``.

    Raises:
        DamageError: It is not compressed in this way, or does not have ``raw_bytes``.
    """
    try:
        content = _decompress(stored, algorithm, raw_bytes)
    except (OSError, pa.ArrowException, ValueError) as error:
        raise DamageError(f"not a file compressed by {algorithm}: {error}") from error
    if content.size != raw_bytes:
        found = "more" if content.size > raw_bytes else f"{content.size}"
        raise DamageError(f"{found} bytes found when decompressed, but the index says {raw_bytes}")
    return content


def head_of(stored: bytes, algorithm: str, *, length: int, raw_bytes: int) -> bytes:
    """Return the first ``length`` bytes of a file of which only the first bytes are known.

    Args:
        stored: The first bytes of the compressed file, or all of them.
        algorithm: How it is compressed.
        length: How many bytes to return.
        raw_bytes: The size of the file before compression.

    Returns:
        Nothing if these do not suffice, as with snappy, which has no streams.
    """
    try:
        if algorithm == "snappy":
            return decompressed(stored, algorithm, raw_bytes=raw_bytes).to_pybytes()[:length]
        with (
            pa.BufferReader(stored) as source,
            pa.CompressedInputStream(source, _ARROW_NAMES[algorithm]) as stream,
        ):
            return stream.read(length)
    except (OSError, pa.ArrowException, ValueError, DamageError):
        return b""


def compressed(raw: bytes, compression: Compression) -> bytes:
    """Return ``raw`` as one frame."""
    return _COMPRESSORS[compression.algorithm](raw, compression.level or 0)


def _decompress(stored: bytes, algorithm: str, raw_bytes: int) -> pa.Buffer:
    if algorithm == "snappy":
        # No stream class reads a raw block, and pyarrow pads output that is shorter than expected.
        size = _snappy_size(stored)
        if size != raw_bytes:
            raise DamageError(f"a block of {size} bytes found, but the index says {raw_bytes}")
        return pa.Codec("snappy").decompress(stored, decompressed_size=raw_bytes)
    with (
        pa.BufferReader(stored) as source,
        pa.CompressedInputStream(source, _ARROW_NAMES[algorithm]) as stream,
    ):
        content = stream.read_buffer(raw_bytes)
        surplus = len(stream.read(1))
        if surplus:
            raise DamageError(f"more than {raw_bytes} bytes found when decompressed")
        return content


def _snappy_size(stored: bytes) -> int:
    """Read the length before a raw block: seven bits per byte, lowest first."""
    size = 0
    for place, byte in enumerate(stored[:5]):
        size |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004 - the high bit says that more follow
            return size
    raise ValueError("no length before the block")


def _by_arrow(name: _Codec) -> Callable[[bytes, int], bytes]:
    return lambda raw, level: bytes(pa.Codec(name, level).compress(raw))


_COMPRESSORS: Mapping[str, Callable[[bytes, int], bytes]] = {
    "br": _by_arrow("brotli"),
    "bz2": bz2.compress,
    # The current time would change the hash of the file from run to run.
    "gz": lambda raw, level: gzip.compress(raw, level, mtime=0),
    "snappy": lambda raw, _: bytes(pa.Codec("snappy").compress(raw)),
    "zstd": _by_arrow("zstd"),
}
