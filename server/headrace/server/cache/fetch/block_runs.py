"""Read neighbouring blocks together, through the layers between the cache and a dataset.

Readers that can do so have the two methods of `RunReader`; others read each block alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage import ReadBlock


class BlockReader(Protocol):
    """What the cache needs of a dataset."""

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one block."""


@runtime_checkable
class RunReader(BlockReader, Protocol):
    """What it makes use of besides."""

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbours of at most that many bytes one read should bring."""

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks that are in rising order; errors are values."""


def store_of(url: str) -> str:
    """Name the store that a dataset lies in: its scheme and host or bucket."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def run_blocks(reader: object, max_bytes: int) -> int:
    """Return how many neighbouring blocks of a reader should come together, 1 at least."""
    return reader.run_blocks(max_bytes) if isinstance(reader, RunReader) else 1


def read_run(reader: BlockReader, blocks: Sequence[int]) -> Iterator[ReadBlock]:
    """Read blocks that are in rising order, together where the reader can; errors are values."""
    if isinstance(reader, RunReader):
        return reader.read_run(blocks)
    return (_read_alone(reader, block) for block in blocks)


def _read_alone(reader: BlockReader, block: int) -> ReadBlock:
    try:
        return ReadBlock(block, reader.read_block(block))
    except HeadraceError as error:
        return ReadBlock(block, error)
