"""Read neighbouring blocks together, through all layers between the cache and a dataset.

Readers that support this have the two methods of `RunReader`; others read single blocks. Readers
whose blocks can be verified as they are stored have the methods of `VerifyingReader` too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Protocol, TypeGuard, TypeVar, cast, runtime_checkable
from urllib.parse import urlsplit

import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.storage import ReadBlock, VerifiedBlocks, Verify

_T = TypeVar("_T")


class BlockReader(Protocol):
    """The reader of a dataset, as the cache needs it."""

    def read_block(self, block: int) -> pa.RecordBatch:
        """Fetch, verify and decode one block."""


@runtime_checkable
class RunReader(BlockReader, Protocol):
    """A reader that can read neighbouring blocks together."""

    def run_blocks(self, max_bytes: int) -> int:
        """Return how many neighbouring blocks, of at most ``max_bytes``, to read together."""

    def read_run(self, blocks: Sequence[int]) -> Iterator[ReadBlock]:
        """Read blocks, given in rising order; errors are values."""


@runtime_checkable
class VerifyingReader(RunReader, Protocol):
    """A reader whose blocks can be verified as they are stored."""

    @property
    def block_schema(self) -> pa.Schema | None:
        """The schema of stored blocks; None if they must be decoded."""

    def read_verified(
        self, blocks: Sequence[int], verify: Verify[_T]
    ) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
        """Read blocks as `read_run` does, but decode only those that ``verify`` does not take."""


def block_schema(reader: object) -> pa.Schema | None:
    """Return the schema of a reader's stored blocks; None if they must be decoded."""
    return reader.block_schema if isinstance(reader, VerifyingReader) else None


def read_verified(
    reader: object, blocks: Sequence[int], verify: Verify[_T]
) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
    """Read blocks of a reader that has a `block_schema`; see `VerifyingReader.read_verified`."""
    return cast("VerifyingReader", reader).read_verified(blocks, verify)


def store_of(url: str) -> str:
    """Return the name of a dataset's store: its scheme and its host or bucket."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def run_blocks(reader: object, max_bytes: int) -> int:
    """Return how many neighbouring blocks to read together, >= 1."""
    return reader.run_blocks(max_bytes) if _reads_runs(reader) else 1


def read_run(reader: BlockReader, blocks: Sequence[int]) -> Iterator[ReadBlock]:
    """Read blocks, given in rising order, together if the reader can; errors are values."""
    if _reads_runs(reader):
        return reader.read_run(blocks)
    return (_read_alone(reader, block) for block in blocks)


def _reads_runs(reader: object) -> TypeGuard[RunReader]:
    return _is_run_reader(type(reader))  # type: ignore[arg-type] # types can be hashed


@cache
def _is_run_reader(kind: type) -> bool:
    # Cached, because checking a protocol takes some 20 us, at every read.
    return issubclass(kind, RunReader)


def _read_alone(reader: BlockReader, block: int) -> ReadBlock:
    try:
        return ReadBlock(block, reader.read_block(block))
    except HeadraceError as error:
        return ReadBlock(block, error)
