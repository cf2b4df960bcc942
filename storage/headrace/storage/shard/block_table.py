"""The codec of the block table: an Arrow IPC file whose record batches are pages.

A page holds `PAGE_BLOCKS` rows, and the last page the rest. Each page is read and verified alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headrace.errors import ManifestCorruptError
from headrace.storage.shard.arrow_message import message_size
from headrace.storage.shard.block import BLOCK_DTYPE
from headrace.storage.shard.buffers import values_of
from headrace.storage.shard.fingerprint import page_digest
from headrace.storage.shard.shard_writer import MessageSink

PAGE_BLOCKS = 4096
"""Rows of a page: about 115 kB, so a look-up costs one small read."""

BLOCK_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("stored_bytes", pa.int32(), nullable=False),
        pa.field("sample_count", pa.int32(), nullable=False),
        pa.field("raw_bytes", pa.int32(), nullable=False),
        pa.field("checksum", pa.uint64(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class PageEntry:
    """The place of a page in the block table, and what it must hold.

    Attributes:
        offset: The offset of its message in the file.
        stored_bytes: Bytes of its message.
        first_sample: Id of the first sample of its first block.
        digest: BLAKE2b-128 digest of its rows, 32 hexadecimal digits.
    """

    offset: int
    stored_bytes: int
    first_sample: int
    digest: str


class _MemoryWriter:
    """An `ObjectWriter` that writes into memory."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, chunk: bytes) -> None:
        self.content += chunk

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


def encode_block_table(blocks: NDArray[np.void]) -> tuple[bytes, tuple[PageEntry, ...]]:
    """Return the file and its pages.

    Args:
        blocks: ``(blocks,)`` of `BLOCK_DTYPE`, shard after shard.
    """
    target = _MemoryWriter()
    sink = MessageSink(target, BLOCK_SCHEMA)
    pages = []
    first_sample = 0
    with pa.ipc.new_file(sink.as_arrow(), BLOCK_SCHEMA) as writer:
        for rows in _pages_of(blocks):
            sink.begin_message()
            writer.write_batch(_batch_of(rows))
            offset, stored_bytes, _ = sink.end_message()
            digest = page_digest(rows).hex()
            pages.append(PageEntry(offset, stored_bytes, first_sample, digest))
            first_sample += int(rows["sample_count"].sum(dtype=np.int64))
    return bytes(target.content), tuple(pages)


def page_digests(blocks: NDArray[np.void]) -> list[bytes]:
    """Return the digest of each page of ``blocks``."""
    return [page_digest(rows) for rows in _pages_of(blocks)]


def decode_page(message: bytes, page: PageEntry, *, row_count: int, place: str) -> NDArray[np.void]:
    """Return the rows of a page, verified.

    Args:
        message: The bytes that were read.
        page: What the shard table states.
        row_count: The number of rows that the page must have.
        place: The place of the page, for the error.

    Raises:
        ManifestCorruptError: The page does not match the shard table.
    """
    where = f"{place}, page at byte {page.offset}"
    if len(message) != page.stored_bytes:
        raise _damage(where, f"{len(message)} bytes found, {page.stored_bytes} expected")
    try:
        batch = _plain_batch(pa.ipc.read_message(pa.py_buffer(message)))
        batch.validate()
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise _damage(where, str(error)) from error
    if batch.num_rows != row_count or any(column.null_count for column in batch.columns):
        raise _damage(where, f"{batch.num_rows} rows found, {row_count} without nulls expected")
    rows = np.empty(row_count, BLOCK_DTYPE)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        rows[name] = values_of(column, BLOCK_DTYPE[name])
    digest = page_digest(rows).hex()
    if digest != page.digest:
        raise _damage(where, f"digest {digest} found, {page.digest} expected")
    return rows


def concatenated(parts: Sequence[NDArray[np.void]]) -> NDArray[np.void]:
    """Return the rows of all ``parts`` as one table."""
    return np.concatenate([np.empty(0, BLOCK_DTYPE), *parts])


def _pages_of(blocks: NDArray[np.void]) -> Iterator[NDArray[np.void]]:
    for start in range(0, len(blocks), PAGE_BLOCKS):
        yield blocks[start : start + PAGE_BLOCKS]


def _batch_of(rows: NDArray[np.void]) -> pa.RecordBatch:
    columns = [pa.array(np.ascontiguousarray(rows[field.name])) for field in BLOCK_SCHEMA]
    return pa.RecordBatch.from_arrays(columns, schema=BLOCK_SCHEMA)


def _plain_batch(message: pa.Message) -> pa.RecordBatch:
    if message_size(message).is_compressed:  # may ask for more memory than there is
        raise ValueError("compressed page found, none expected")
    return pa.ipc.read_record_batch(message, BLOCK_SCHEMA)


def _damage(where: str, found: str) -> ManifestCorruptError:
    return ManifestCorruptError(
        f"block table {where}: {found}; restore it or convert the data again", place=where
    )
