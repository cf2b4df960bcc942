"""Read neighbouring blocks with one request to the store.

Up to a few MiB, the cost of a read for a store and its client hardly depends on its length:
SeaweedFS takes 3.2 ms of processor time for a range of 1 MiB, and 0.9 ms a MiB for a longer one; S3
takes about 30 ms before the first byte. So adjacent blocks that are needed together are read
together.

Contract:

1. Each block of a run is verified and decoded on its own. A damaged one is read again, alone;
   the others are kept.
2. If a range cannot be read, each of its blocks gets the error.
3. A range lies in one shard, and is longer than `MAX_RANGE_BYTES` only if a single block is.

If the code differs, the code is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import pyarrow as pa

from headrace.errors import HeadraceError, ShardCorruptError
from headrace.storage.shard.block import BlockPlace

MAX_RANGE_BYTES = 8 << 20
"""Measured (tests/benchmarks/bench_s3.py): longer ranges gain nothing and take memory."""

# Between two blocks of a shard there is only padding; a larger gap is something else.
_GAP_BYTES = 64

_T = TypeVar("_T")

Verify: TypeAlias = Callable[[bytes, Sequence[BlockPlace]], "Sequence[_T | None]"]
"""Verifies the blocks of a range faster than decoding them.

Takes the bytes from the first block on, and returns a result for each block, or None for one that
is damaged or of an unsupported kind, which is then decoded.
"""


@dataclass(frozen=True, slots=True, eq=False)
class ReadBlock:
    """The result for one block.

    Attributes:
        block: The ordinal of the block.
        content: The samples of the block, or the error.
        stored: The stored bytes of the block; empty with an error.
    """

    block: int
    content: pa.RecordBatch | HeadraceError
    stored: bytes | memoryview = b""


@dataclass(frozen=True, slots=True, eq=False)
class VerifiedBlocks(Generic[_T]):
    """The results of `Verify` for blocks of one range.

    Attributes:
        contents: The results, by the ordinal of the block.
    """

    contents: Mapping[int, _T]


@dataclass(frozen=True, slots=True)
class BlockAccess:
    """How the blocks of one dataset are read and decoded.

    Attributes:
        read: Returns bytes of a shard, given its name, an offset and a length.
        decode: Verifies and decodes the stored bytes of a block.
        read_alone: Reads a single block, again if it is damaged.
    """

    read: Callable[[str, int, int], bytes]
    decode: Callable[[bytes | memoryview, BlockPlace], pa.RecordBatch]
    read_alone: Callable[[BlockPlace], tuple[bytes, pa.RecordBatch]]

    def read_run(self, places: Iterable[BlockPlace]) -> Iterator[ReadBlock]:
        """Read blocks, given in rising order, neighbours together; errors are values."""
        for together in ranges_of(places):
            if len(together) == 1:
                yield self._alone(together[0])
            else:
                yield from self._together(together)

    def read_verified(
        self, places: Iterable[BlockPlace], verify: Verify[_T]
    ) -> Iterator[ReadBlock | VerifiedBlocks[_T]]:
        """Read blocks as `read_run` does, but decode only those that ``verify`` does not take.

        The others of a range come first, together.
        """
        for together in ranges_of(places):
            try:
                content = self._content(together)
            except HeadraceError as error:
                yield from (ReadBlock(place.block, error) for place in together)
                continue
            verified: dict[int, _T] = {}
            others: list[BlockPlace] = []
            for place, found in zip(together, verify(content, together), strict=True):
                if found is None:
                    others.append(place)
                else:
                    verified[place.block] = found
            if verified:
                yield VerifiedBlocks(verified)
            for place in others:
                if len(together) == 1:
                    yield self._decoded_alone(content, place)
                else:
                    yield self._decoded(memoryview(content), place, together[0].offset)

    def _together(self, places: Sequence[BlockPlace]) -> Iterator[ReadBlock]:
        try:
            content = memoryview(self._content(places))
        except HeadraceError as error:
            yield from (ReadBlock(place.block, error) for place in places)
            return
        for place in places:
            yield self._decoded(content, place, places[0].offset)

    def _content(self, places: Sequence[BlockPlace]) -> bytes:
        start = places[0].offset
        return self.read(
            places[0].shard, start, places[-1].offset + places[-1].stored_bytes - start
        )

    def _decoded(self, content: memoryview, place: BlockPlace, start: int) -> ReadBlock:
        stored = content[place.offset - start :][: place.stored_bytes]
        try:
            return ReadBlock(place.block, self.decode(stored, place), stored)
        except ShardCorruptError:
            return self._alone(place)

    def _decoded_alone(self, content: bytes, place: BlockPlace) -> ReadBlock:
        """Decode a block that was read alone, or else read it once more."""
        try:
            try:
                return ReadBlock(place.block, self.decode(content, place), content)
            except ShardCorruptError:
                stored = self.read(place.shard, place.offset, place.stored_bytes)
                return ReadBlock(place.block, self.decode(stored, place), stored)
        except HeadraceError as error:
            return ReadBlock(place.block, error)

    def _alone(self, place: BlockPlace) -> ReadBlock:
        try:
            stored, batch = self.read_alone(place)
        except HeadraceError as error:
            return ReadBlock(place.block, error)
        return ReadBlock(place.block, batch, stored)


def ranges_of(
    places: Iterable[BlockPlace], *, max_bytes: int = MAX_RANGE_BYTES
) -> Iterator[list[BlockPlace]]:
    """Group blocks, given in rising order, into those that one range holds."""
    together: list[BlockPlace] = []
    for place in places:
        if together and not _is_next(place, together, max_bytes):
            yield together
            together = []
        together.append(place)
    if together:
        yield together


def _is_next(place: BlockPlace, together: Sequence[BlockPlace], max_bytes: int) -> bool:
    first, last = together[0], together[-1]
    gap = place.offset - last.offset - last.stored_bytes
    return (
        place.shard == last.shard
        and 0 <= gap <= _GAP_BYTES
        and place.offset + place.stored_bytes - first.offset <= max_bytes
    )
