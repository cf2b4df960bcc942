"""Read blocks in order as fast as the store allows, with overlapping reads.

1. Memory: `AHEAD_BYTES` of stored blocks, the same blocks decoded, and one more block.
2. A block that does not match its place is read once more; if it is still wrong, the error is
   raised in its turn.
3. When the iterator ends or is closed, none of its reads runs any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pyarrow as pa

from headrace.errors import HeadraceError, ShardCorruptError
from headrace.storage.dataset.coalesced_reads import BlockAccess, ReadBlock, ranges_of
from headrace.storage.shard.block import BlockPlace, decode_block
from headrace.storage.shard.decoder import BlockDecoder
from headrace.storage.store.store import Store

AHEAD_BYTES = 16 << 20  # two of the longest ranges
AHEAD_READS = 16  # so that waits for small objects overlap


def stream_blocks(
    store: Store, places: Iterable[BlockPlace], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield blocks in the order of their places.

    Args:
        store: The store of the dataset.
        places: The places of the blocks; `BlockPlace.shard` is the name of the object.
        schema: The stored schema of the blocks.

    Raises:
        ShardCorruptError: A block was read twice, and did not match its place.
        ObjectNotFoundError: A shard is gone.
        StoreUnavailableError: The store cannot be reached.
    """
    access = _access(store, BlockDecoder(schema))
    ahead: deque[tuple[int, Future[list[ReadBlock]]]] = deque()
    pool = ThreadPoolExecutor(AHEAD_READS, thread_name_prefix="headrace-blocks")
    held = 0
    try:
        for together in ranges_of(places):
            length = sum(place.stored_bytes for place in together)
            while ahead and (held + length > AHEAD_BYTES or len(ahead) == AHEAD_READS):
                held -= ahead[0][0]
                yield from _batches(ahead.popleft()[1])
            ahead.append((length, pool.submit(_read, access, together)))
            held += length
        while ahead:
            yield from _batches(ahead.popleft()[1])
    finally:
        pool.shutdown(cancel_futures=True)


def _read(access: BlockAccess, places: Sequence[BlockPlace]) -> list[ReadBlock]:
    return list(access.read_run(places))


def _access(store: Store, decoder: BlockDecoder) -> BlockAccess:
    def decode(stored: bytes | memoryview, place: BlockPlace) -> pa.RecordBatch:
        return decode_block(stored, place, decoder=decoder)

    def read(shard: str, offset: int, length: int) -> bytes:
        return store.read(shard, offset=offset, length=length)

    def once(place: BlockPlace) -> tuple[bytes, pa.RecordBatch]:
        stored = read(place.shard, place.offset, place.stored_bytes)
        return stored, decode(stored, place)

    def alone(place: BlockPlace) -> tuple[bytes, pa.RecordBatch]:
        try:
            return once(place)
        except ShardCorruptError:
            return once(place)

    return BlockAccess(read=read, decode=decode, read_alone=alone)


def _batches(read: Future[list[ReadBlock]]) -> Iterator[pa.RecordBatch]:
    for block in read.result():
        if isinstance(block.content, HeadraceError):
            raise block.content
        yield block.content
