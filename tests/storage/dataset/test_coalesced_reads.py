"""Tests of runs: neighbours come in one read, and each stands or falls alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from headrace.errors import ObjectNotFoundError, ShardCorruptError
from headrace.storage import BlockPlace, Dataset, ReadBlock, VerifiedBlocks, Verify, open_dataset
from headrace.storage.dataset.coalesced_reads import BlockAccess, ranges_of
from support.shards import numbered_batch, write_shards_of


class _Reads:
    """A dataset whose reads are noted, and may be spoiled."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.ranges: list[tuple[str, int, int]] = []
        self.alone: list[int] = []
        self.spoil: Callable[[bytes], bytes] = lambda content: content
        self._store = dataset._store

    def read_run(self, blocks: list[int]) -> list[ReadBlock]:
        """Read as `Dataset.read_run`."""
        access = BlockAccess(self._read, self.dataset._decoded, self._read_alone)
        return list(access.read_run(map(self.dataset.block_place, blocks)))

    def read_verified(
        self, blocks: list[int], verify: Verify[int]
    ) -> list[ReadBlock | VerifiedBlocks[int]]:
        """Read as `Dataset.read_verified`."""
        access = BlockAccess(self._read, self.dataset._decoded, self._read_alone)
        return list(access.read_verified(map(self.dataset.block_place, blocks), verify))

    def _read(self, shard: str, offset: int, length: int) -> bytes:
        self.ranges.append((shard, offset, length))
        return self.spoil(self._store.read(shard, offset=offset, length=length))

    def _read_alone(self, place: BlockPlace) -> tuple[bytes, pa.RecordBatch]:
        self.alone.append(place.block)
        return self.dataset._read_alone(place)


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Two shards of many small blocks."""
    write_shards_of(
        str(tmp_path), [numbered_batch(0, 300), numbered_batch(300, 640)], block_bytes=512
    )
    opened = open_dataset(str(tmp_path))
    assert isinstance(opened, Dataset)
    return opened


def _samples(read: ReadBlock) -> list[int]:
    assert isinstance(read.content, pa.RecordBatch)
    return cast("list[int]", read.content.column("number").to_pylist())


def test_neighbours_come_in_one_read(dataset: Dataset) -> None:
    """A run is one range; a hole begins another, and so does the next shard."""
    first = int(dataset._shard_block_ends[0])
    blocks = [0, 1, 2, 4, first - 1, first, first + 1]
    reads = _Reads(dataset)

    found = reads.read_run(blocks)

    assert blocks == [read.block for read in found]
    for read in found:
        assert list(range(*dataset.block_sample_range(read.block))) == _samples(read)
        kept = dataset.decode_stored(read.block, bytes(read.stored))
        assert _samples(read) == _samples(ReadBlock(read.block, kept))
    assert 2 == len(reads.ranges)
    assert [4, first - 1] == reads.alone


def test_what_a_dataset_reads_in_runs_is_what_it_reads_alone(dataset: Dataset) -> None:
    """All blocks in one run are the dataset."""
    blocks = list(range(dataset.block_count))

    found = [number for read in dataset.read_run(blocks) for number in _samples(read)]

    assert list(range(640)) == found
    assert dataset.run_blocks(1) == 1
    assert dataset.run_blocks(10 * dataset.stored_bytes) >= dataset.block_count


def test_a_block_altered_on_its_way_is_read_again_alone(dataset: Dataset) -> None:
    """A flipped byte costs one block a second read, and no other."""
    place = dataset.block_place(3)
    start = place.offset - dataset.block_place(1).offset
    reads = _Reads(dataset)

    def spoil(content: bytes) -> bytes:
        altered = bytearray(content)
        altered[start + place.stored_bytes // 2] ^= 1
        return bytes(altered)

    reads.spoil = spoil
    found = reads.read_run([1, 2, 3, 4])

    assert [3] == reads.alone
    assert list(range(dataset.block_sample_range(1)[0], dataset.block_sample_range(4)[1])) == [
        number for read in found for number in _samples(read)
    ]


def test_a_short_answer_costs_what_it_lacks(dataset: Dataset) -> None:
    """Blocks that a short answer holds whole stand; the others are read alone."""
    reads = _Reads(dataset)
    reads.spoil = lambda content: content[: len(content) // 2]

    found = reads.read_run([0, 1, 2, 3])

    assert [0, 1, 2, 3] == [read.block for read in found if _samples(read)]
    assert reads.alone in ([2, 3], [1, 2, 3])


def test_a_block_that_stays_damaged_fails_alone(dataset: Dataset, tmp_path: Path) -> None:
    """The error names the block; its neighbours in the run are samples."""
    place = dataset.block_place(2)
    shard = tmp_path / place.shard
    content = bytearray(shard.read_bytes())
    content[place.offset + place.stored_bytes // 2] ^= 1
    shard.write_bytes(content)

    found = list(dataset.read_run([1, 2, 3]))

    bad = found[1].content
    assert isinstance(bad, ShardCorruptError)
    assert str(place.offset) == bad.metadata["offset"]
    assert all(_samples(read) for read in (found[0], found[2]))


def test_a_range_that_cannot_be_read_is_the_error_of_its_blocks(
    dataset: Dataset, tmp_path: Path
) -> None:
    """A shard that is gone fails its own blocks; those of the next one stand."""
    first = int(dataset._shard_block_ends[0])
    (tmp_path / dataset.block_place(0).shard).unlink()

    found = list(dataset.read_run([first - 2, first - 1, first, first + 1]))

    assert all(isinstance(read.content, ObjectNotFoundError) for read in found[:2])
    assert all(_samples(read) for read in found[2:])


def test_blocks_that_are_verified_are_not_decoded(dataset: Dataset) -> None:
    """What a caller makes of blocks comes first and together; the others come decoded."""
    reads = _Reads(dataset)

    found = reads.read_verified(
        [1, 2, 3], lambda _, places: [place.block % 2 or None for place in places]
    )

    verified, decoded = found
    assert isinstance(verified, VerifiedBlocks)
    assert {1: 1, 3: 1} == verified.contents
    assert isinstance(decoded, ReadBlock)
    assert 2 == decoded.block
    assert _samples(decoded)
    assert 1 == len(reads.ranges)


@pytest.mark.parametrize("times", [1, 2])
def test_a_block_that_is_read_alone_is_read_twice_at_most(dataset: Dataset, times: int) -> None:
    """One that nobody verified is decoded, or read once more; then it is an error."""
    reads = _Reads(dataset)
    reads.spoil = lambda content: content[::-1] if len(reads.ranges) <= times else content

    (found,) = reads.read_verified([2], lambda _, places: [None for _ in places])

    assert isinstance(found, ReadBlock)
    assert (times == 2) == isinstance(found.content, ShardCorruptError)
    assert 2 == len(reads.ranges)


def test_a_range_is_bounded(dataset: Dataset) -> None:
    """No range is longer than the limit, unless one block is; together they are all blocks."""
    places = [dataset.block_place(block) for block in range(dataset.block_count)]
    limit = 3 * places[0].stored_bytes + 100

    for max_bytes in (1, limit):
        runs = list(ranges_of(places, max_bytes=max_bytes))
        assert places == [place for run in runs for place in run]
        for run in runs:
            length = run[-1].offset + run[-1].stored_bytes - run[0].offset
            assert length <= max_bytes or len(run) == 1
