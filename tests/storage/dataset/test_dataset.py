"""What was written is what is read, by whatever way it is reached."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import BadArgumentError, NotADatasetError, ShardCorruptError
from headrace.storage import (
    SHAPE_AUTO,
    SHAPE_KEY,
    Compression,
    Dataset,
    OpenDataset,
    open_dataset,
    open_store,
)
from support.s3 import S3
from support.shards import numbered_batch, write_shards_of


def _all_samples(dataset: OpenDataset) -> list[dict[str, object]]:
    blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_samples_come_back_in_manifest_order(tmp_path: Path, compression: Compression) -> None:
    """Blocks read one after another are the samples that were written, whatever the codec."""
    shards = [numbered_batch(0, 500), numbered_batch(500, 501), numbered_batch(501, 900)]
    write_shards_of(str(tmp_path), shards, compression=compression)

    with open_dataset(str(tmp_path)) as dataset:
        found = _all_samples(dataset)

    assert numbered_batch(0, 900).to_pylist() == found


def test_locate_finds_every_sample(tmp_path: Path) -> None:
    """For ids in any order, the located place holds the sample with that number.

    The place counts from the first sample of its block.
    """
    write_shards_of(str(tmp_path), [numbered_batch(0, 300), numbered_batch(300, 640)])
    ids = np.random.default_rng(0).integers(0, 640, 200)

    with open_dataset(str(tmp_path)) as dataset:
        blocks, offsets = dataset.locate(ids)
        batches = [dataset.read_block(int(block)) for block in blocks]
        found = [
            batch["number"][int(offset)].as_py()
            for batch, offset in zip(batches, offsets, strict=True)
        ]
        firsts = dataset.block_first_samples(blocks)

    assert ids.tolist() == found
    assert ids.tolist() == (firsts + offsets).tolist()


def test_block_ranges_cover_the_dataset(tmp_path: Path) -> None:
    """Each block's sample range begins where the last one's ended."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 300), numbered_batch(300, 640)])

    with open_dataset(str(tmp_path)) as dataset:
        ranges = [dataset.block_sample_range(block) for block in range(dataset.block_count)]
        edges = [0, *(stop for _, stop in ranges)]

    assert list(itertools.pairwise(edges)) == ranges
    assert edges[-1] == 640


@pytest.mark.parametrize("bad", [-1, 640])
def test_ids_outside_the_dataset_are_refused(tmp_path: Path, bad: int) -> None:
    """An id below zero or past the last sample is a caller's error that names it."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 640)])

    with (
        open_dataset(str(tmp_path)) as dataset,
        pytest.raises(BadArgumentError, match=rf"sample id {bad} is not in \[0, 640\)"),
    ):
        dataset.locate(np.array([3, bad]))


def test_blocks_hold_about_the_bytes_asked_for(tmp_path: Path) -> None:
    """Blocks hold about as many bytes as asked for; only the last of a shard may be small."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 2000)], block_bytes=4096)

    with open_dataset(str(tmp_path)) as dataset:
        sizes = dataset.block_raw_bytes(np.arange(dataset.block_count))

    assert sizes.max() <= 1.05 * 4096
    assert sizes[:-1].min() > 0.85 * 4096
    assert sizes.sum() == dataset.raw_bytes == dataset.shard_raw_bytes.sum()


def test_columns_without_nulls_are_not_nullable(tmp_path: Path) -> None:
    """Nullability in the schema says what the blocks hold, not what the writer feared."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 100)])

    with open_dataset(str(tmp_path)) as dataset:
        nullable = [field.name for field in dataset.schema if field.nullable]

    assert ["maybe"] == nullable


def _lists(lengths: list[int]) -> pa.RecordBatch:
    item = pa.field("item", pa.int16(), nullable=False)
    field = pa.field("x", pa.list_(item), metadata={SHAPE_KEY: SHAPE_AUTO})
    values = [list(range(length)) for length in lengths]
    return pa.RecordBatch.from_pydict({"x": values}, schema=pa.schema([field]))


def test_lists_of_one_length_become_fixed(tmp_path: Path) -> None:
    """A list column of undeclared shape is a fixed-size list when all shards agree on it."""
    write_shards_of(str(tmp_path), [_lists([3, 3, 3]), _lists([3])])

    with open_dataset(str(tmp_path)) as dataset:
        kind = dataset.schema.field("x").type
        last = dataset.read_block(1).to_pydict()

    assert pa.list_(pa.field("item", pa.int16(), nullable=False), 3) == kind
    assert {"x": [[0, 1, 2]]} == last


def test_lists_of_several_lengths_stay_lists(tmp_path: Path) -> None:
    """One sample of another length anywhere keeps the whole column ragged."""
    write_shards_of(str(tmp_path), [_lists([3, 3, 3]), _lists([2])])

    with open_dataset(str(tmp_path)) as dataset:
        kind = dataset.schema.field("x").type

    assert pa.list_(pa.field("item", pa.int16(), nullable=False)) == kind


def test_appending_another_length_is_refused(tmp_path: Path) -> None:
    """Served tensors keep their shape: the message has both and what to do."""
    write_shards_of(str(tmp_path), [_lists([3, 3])])

    with pytest.raises(BadArgumentError, match=r"\[3\].*\[2\].*declared ragged"):
        write_shards_of(str(tmp_path), [_lists([2])], mode="append", stem="more")


def test_append_keeps_ids_and_old_versions(tmp_path: Path) -> None:
    """Old ids mean the same samples after an append, and the old version still opens."""
    url = str(tmp_path)
    first = write_shards_of(url, [numbered_batch(0, 100)])
    second = write_shards_of(url, [numbered_batch(100, 150)], mode="append", stem="more")

    with open_dataset(url, fingerprint=first.fingerprint) as old, open_dataset(url) as new:
        counts = (old.sample_count, new.sample_count)
        samples = _all_samples(new)

    assert (100, 150) == counts
    assert second.fingerprint == new.fingerprint
    assert numbered_batch(0, 150).to_pylist() == samples


def test_a_missing_version_is_told_with_those_there_are(tmp_path: Path) -> None:
    """Opening an unknown fingerprint names the known ones."""
    manifest = write_shards_of(str(tmp_path), [numbered_batch(0, 10)])

    with pytest.raises(NotADatasetError, match=manifest.fingerprint):
        open_dataset(str(tmp_path), fingerprint="0" * 32)


@pytest.mark.parametrize("kind", ["missing", "empty", "file"])
def test_a_place_without_a_dataset_says_what_to_do(tmp_path: Path, kind: str) -> None:
    """No folder, an empty one, or a file: the last two say what was looked for."""
    place = tmp_path / kind
    if kind == "empty":
        place.mkdir()
    if kind == "file":
        place.write_text("hello")

    wanted = "there is no folder" if kind == "missing" else r"no headrace\.json"
    with pytest.raises(NotADatasetError, match=f"{wanted}.*headrace convert"):
        open_dataset(str(place))


def test_a_block_damaged_on_the_way_is_read_again(tmp_path: Path) -> None:
    """One bad read heals; the samples are right."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 10)])
    dataset = open_dataset(str(tmp_path))
    assert isinstance(dataset, Dataset)
    place = dataset.block_place(0)
    shard = tmp_path / place.shard
    good = shard.read_bytes()
    bad = bytearray(good)
    bad[place.offset + 40] ^= 1
    reads = iter([bytes(bad), good])

    class Flaky:
        """The same store, whose first read comes out damaged."""

        url = dataset.url

        def read(self, name: str, *, offset: int, length: int) -> bytes:
            """Return the next version of the shard."""
            assert name == place.shard
            return next(reads)[offset : offset + length]

    dataset._store = Flaky()  # type: ignore[assignment] # read is all that is called

    assert numbered_batch(0, 10).to_pylist() == dataset.read_block(0).to_pylist()


def test_a_damaged_block_is_named(tmp_path: Path) -> None:
    """A flipped bit on disk is an error with shard, block, byte offset and both checksums."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 100)], block_bytes=512)
    with open_dataset(str(tmp_path)) as dataset:
        assert isinstance(dataset, Dataset)
        place = dataset.block_place(2)
        shard = tmp_path / place.shard
        content = bytearray(shard.read_bytes())
        content[place.offset + place.stored_bytes // 2] ^= 0x10
        shard.write_bytes(content)

        with pytest.raises(ShardCorruptError) as caught:
            dataset.read_block(2)
        neighbour = dataset.read_block(1).num_rows

    assert caught.value.metadata["offset"] == str(place.offset)
    assert f"{place.shard}, block 2, at byte {place.offset}: checksum" in caught.value.message
    assert f"{place.checksum:016x} expected" in caught.value.message
    assert neighbour > 0


def test_shards_open_in_plain_arrow(tmp_path: Path) -> None:
    """A shard is an Arrow IPC file like any other."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 100)])

    with pa.ipc.open_file(str(tmp_path / "shards" / "shard-00000.arrow")) as reader:
        samples = reader.read_all().to_pylist()

    assert numbered_batch(0, 100).to_pylist() == samples


def test_the_same_dataset_in_three_kinds_of_store(tmp_path: Path, s3: S3) -> None:
    """Local, S3 and fsspec stores give equal fingerprints and samples."""
    urls = [str(tmp_path / "x"), s3.url("x"), f"memory://{s3.prefix}/x"]
    prints = [write_shards_of(url, [numbered_batch(0, 400)]).fingerprint for url in urls]
    samples = []
    for url in urls:
        with open_dataset(url) as dataset:
            samples.append(_all_samples(dataset))
    names = [sorted(open_store(url).list("shards/")) for url in urls]

    assert prints[0] == prints[1] == prints[2]
    assert samples[0] == samples[1] == samples[2] == numbered_batch(0, 400).to_pylist()
    assert names == [["shards/shard-00000.arrow"]] * 3
