"""The codec of one block: a stored Arrow message, its checksum, and the batch in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import xxhash

from headrace.errors import ShardCorruptError
from headrace.storage.shard.arrow_message import MessageSize, message_size
from headrace.storage.shard.decoder import BlockDecoder

BLOCK_DTYPE = np.dtype(
    [
        ("offset", "<i8"),
        ("stored_bytes", "<i4"),
        ("sample_count", "<i4"),
        ("raw_bytes", "<i4"),
        ("checksum", "<u8"),
    ]
)
"""One row of the block table.

``offset`` and ``stored_bytes`` say where the encapsulated message lies in its shard; ``checksum``
is XXH3-64 (seed 0) of exactly these bytes.
"""

MAX_BLOCK_BYTES = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """A block as its manifest describes it, and its place.

    Attributes:
        shard: Name of the shard, with its dataset's URL.
        block: Ordinal of the block in the dataset.
        offset: The offset of the first stored byte in the shard.
        stored_bytes: Bytes of the stored message.
        sample_count: Number of samples that the block must hold.
        raw_bytes: The raw bytes of its samples, which bound what decoding may allocate.
        checksum: XXH3-64 that the stored message must have.
    """

    shard: str
    block: int
    offset: int
    stored_bytes: int
    sample_count: int
    raw_bytes: int
    checksum: int

    @classmethod
    def of_row(cls, row: np.void, *, shard: str, block: int) -> BlockPlace:
        """Return the place in a row of the block table, which is one `BLOCK_DTYPE`."""
        return cls(shard, block, *row.item())

    def damage(self, found: str) -> ShardCorruptError:
        """Return the error that says what was found at this place."""
        return ShardCorruptError(
            f"shard {self.shard}, block {self.block}, at byte {self.offset}: {found}; "
            "restore the shard or convert the data again",
            shard=self.shard,
            block=self.block,
            offset=self.offset,
        )


def checksum_of(stored: bytes | memoryview) -> int:
    """Return the XXH3-64 checksum of a stored message."""
    return xxhash.xxh3_64_intdigest(stored)


def decode_block(
    stored: bytes | memoryview, place: BlockPlace, *, decoder: BlockDecoder
) -> pa.RecordBatch:
    """Verify a stored message, then decode it.

    Args:
        stored: The bytes that were read; the batch refers to them if the block is not compressed.
        place: What the manifest states.
        decoder: The decoder for the stored schema of the dataset.

    Raises:
        ShardCorruptError: Length, checksum, message or sample count do not match, or the message
            would decode to far more than its raw bytes.
    """
    if len(stored) != place.stored_bytes:
        raise place.damage(f"{len(stored)} bytes found, {place.stored_bytes} expected")
    found = checksum_of(stored)
    if found != place.checksum:
        raise place.damage(f"checksum {found:016x} found, {place.checksum:016x} expected")
    try:
        message = pa.ipc.read_message(pa.py_buffer(stored))
        size = message_size(message)
        _check_size(size, place)
        batch = decoder.decode(stored) if size.is_compressed else decoder.view(message)
        decoder.validate(batch, states_nulls=size.states_nulls)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise place.damage(f"not a record batch of the dataset's schema: {error}") from error
    if batch.num_rows != place.sample_count:
        raise place.damage(f"{batch.num_rows} samples found, {place.sample_count} expected")
    return batch


def _check_size(size: MessageSize, place: BlockPlace) -> None:
    # Twice, because raw bytes count some values differently (text under a null); and a bit a value
    # for validity, which they do not count, and padding.
    limit = 2 * place.raw_bytes + (place.sample_count // 8 + 1024) * size.buffer_count
    if size.decoded_bytes > limit:
        raise place.damage(
            f"{size.decoded_bytes} bytes after decompression, at most {limit} expected for "
            f"{place.raw_bytes} raw bytes"
        )
