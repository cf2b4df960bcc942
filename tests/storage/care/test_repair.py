"""A manifest is made again from the shards, and what is lost is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import BadArgumentError, CommitConflictError
from headrace.storage import (
    Manifest,
    commit_dataset,
    open_dataset,
    open_store,
    repair_manifest,
    verify_blocks,
)
from headrace.storage.dataset.read_manifest import read_block_rows
from headrace.storage.shard.block_table import encode_block_table
from support.s3 import S3
from support.shards import numbered_batch, pointer_of, write_shard, write_shards_of

_SCHEMA = numbered_batch(0, 1).schema
Damage = Callable[[Path], None]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A dataset in ``tmp_path`` of three shards, the last of which was appended."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 50), numbered_batch(50, 90)], stem="a")
    return write_shards_of(str(tmp_path), [numbered_batch(90, 120)], stem="b", mode="append")


def _lose(pattern: str) -> Damage:
    def lose(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return lose


def _flip(pattern: str, place: int = -1) -> Damage:
    def flip(folder: Path) -> None:
        for path in folder.glob(pattern):
            content = bytearray(path.read_bytes())
            content[len(content) // 2 if place < 0 else place] ^= 255
            path.write_bytes(content)

    return flip


def _numbers(url: str) -> list[int]:
    with open_dataset(url) as dataset:
        assert [] == list(verify_blocks(dataset, threads=2))
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [sample["number"] for sample in pa.Table.from_batches(blocks).to_pylist()]


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(_lose("headrace.json"), id="pointer lost"),
        pytest.param(_flip("headrace.json", 0), id="pointer damaged"),
        pytest.param(_lose("manifests/*.blocks.arrow"), id="block tables lost"),
        pytest.param(_flip("manifests/*.blocks.arrow"), id="block tables damaged"),
        pytest.param(_lose("manifests/*"), id="all tables lost"),
        pytest.param(_flip("manifests/*.shards.arrow"), id="shard tables damaged"),
    ],
)
def test_whole_shards_give_the_fingerprint_again(
    tmp_path: Path, manifest: Manifest, damage: Damage
) -> None:
    """Whatever of the manifest is damaged: where the shards are whole it comes out the same."""
    damage(tmp_path)

    report = repair_manifest(open_store(str(tmp_path)))

    assert (manifest.fingerprint, (), True) == (report.fingerprint, report.lost, report.written)
    assert list(range(120)) == _numbers(str(tmp_path))


def test_blocks_are_found_where_they_are(tmp_path: Path, manifest: Manifest) -> None:
    """Offsets are in no digest: where they are wrong the shard itself tells the right ones."""
    store = open_store(str(tmp_path))
    entry = pointer_of(store).current
    rows = read_block_rows(store, entry, manifest)
    rows["offset"][3] += 8
    store.write(entry.blocks.name, encode_block_table(rows)[0])

    report = repair_manifest(store)

    assert (manifest.fingerprint, (), True) == (report.fingerprint, report.lost, report.written)
    assert list(range(120)) == _numbers(str(tmp_path))


def test_everything_lost_but_shards_in_s3(s3: S3) -> None:
    """The same in a bucket."""
    url = s3.url("d")
    manifest = write_shards_of(url, [numbered_batch(0, 50), numbered_batch(50, 90)])
    store = open_store(url)
    for name in [*store.list("manifests/"), "headrace.json"]:
        store.delete(name)

    report = repair_manifest(store)

    assert manifest.fingerprint == report.fingerprint
    assert list(range(90)) == _numbers(url)


def test_a_whole_dataset_is_left_alone(tmp_path: Path, manifest: Manifest) -> None:
    """Nothing wrong, nothing written."""
    before = sorted(open_store(str(tmp_path)).list())
    report = repair_manifest(open_store(str(tmp_path)))

    assert (manifest.fingerprint, False) == (report.fingerprint, report.written)
    assert before == sorted(open_store(str(tmp_path)).list())


def test_a_lost_shard_costs_its_samples(tmp_path: Path, manifest: Manifest) -> None:
    """A shard that is gone is named with its samples; the version before stays in the list."""
    _lose("shards/a-00001.arrow")(tmp_path)

    report = repair_manifest(open_store(str(tmp_path)))

    assert [("a-00001.arrow", None, 40)] == [
        (lost.shard, lost.block, lost.sample_count) for lost in report.lost
    ]
    assert (40, manifest.fingerprint) == (report.samples_lost, report.fingerprint_before)
    assert [*range(50), *range(90, 120)] == _numbers(str(tmp_path))
    with open_dataset(str(tmp_path), fingerprint=manifest.fingerprint) as dataset:
        assert 120 == dataset.sample_count


@pytest.mark.usefixtures("manifest")
def test_a_damaged_block_costs_no_more_than_itself(tmp_path: Path) -> None:
    """With the block table each other block of the shard stays."""
    with open_dataset(str(tmp_path)) as dataset:
        first, end = dataset.block_sample_range(1)
    _flip("shards/a-00000.arrow", _middle_of_block(tmp_path, 1))(tmp_path)

    report = repair_manifest(open_store(str(tmp_path)))

    assert [1] == [lost.block for lost in report.lost]
    assert [*range(first), *range(end, 120)] == _numbers(str(tmp_path))


def _middle_of_block(folder: Path, block: int) -> int:
    with open_dataset(str(folder)) as dataset:
        place = dataset.block_place(block)  # type: ignore[attr-defined] # ours has places
        offset, stored_bytes = place.offset, place.stored_bytes
    return int(offset + stored_bytes // 2)


@pytest.mark.parametrize("cut", [0, 7, 300, -1, -12])
def test_without_tables_a_damaged_shard_is_left_out_whole(tmp_path: Path, cut: int) -> None:
    """Nothing tells which of its blocks are right, nor how many samples it had."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 50), numbered_batch(50, 90)])
    _lose("manifests/*")(tmp_path)
    shard = tmp_path / "shards" / "shard-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:cut])

    report = repair_manifest(open_store(str(tmp_path)))

    assert [("shard-00000.arrow", None)] == [(lost.shard, lost.block) for lost in report.lost]
    assert report.samples_lost is None
    assert list(range(50, 90)) == _numbers(str(tmp_path))


def test_a_shard_of_other_columns_is_left_out(tmp_path: Path) -> None:
    """Without a manifest the first shard says what columns there are."""
    store = open_store(str(tmp_path))
    write_shard(store, "a.arrow", [numbered_batch(0, 5)])
    write_shard(store, "b.arrow", [pa.RecordBatch.from_pydict({"x": [1, 2]})])

    report = repair_manifest(store)

    assert [("b.arrow", 2)] == [(lost.shard, lost.sample_count) for lost in report.lost]


def _converted(url: str, job: str, numbers: range, *, partition: int = 0) -> None:
    write_shard(
        open_store(url),
        f"{partition:05d}-0000-{job}.arrow",
        [numbered_batch(numbers.start, numbers.stop)],
    )


@pytest.mark.parametrize("partition", [0, 1])
def test_shards_of_two_conversions_are_not_mixed(tmp_path: Path, partition: int) -> None:
    """Where names alone tell of two jobs, the caller must say which, in which order."""
    _converted(str(tmp_path), "aaaaaaaa0001", range(5, 9))
    _converted(str(tmp_path), "bbbbbbbb0001", range(5), partition=partition)
    store = open_store(str(tmp_path))

    with pytest.raises(BadArgumentError, match=r"1 of job aaaaaaaa, 1 of job bbbbbbbb.*--shards"):
        repair_manifest(store)
    with pytest.raises(BadArgumentError, match=r"no shard in .* is named 'x'"):
        repair_manifest(store, patterns=["x"])
    repair_manifest(store, patterns=["*-bbbbbbbb*", "*-aaaaaaaa*"])

    assert list(range(9)) == _numbers(str(tmp_path))


def test_other_versions_survive_a_lost_pointer(tmp_path: Path) -> None:
    """Versions whose tables are whole are listed again, also those that are not current."""
    old = write_shards_of(str(tmp_path), [numbered_batch(0, 50)], stem="a")
    new = write_shards_of(str(tmp_path), [numbered_batch(0, 9)], stem="b", mode="overwrite")
    _lose("headrace.json")(tmp_path)

    report = repair_manifest(open_store(str(tmp_path)))

    assert new.fingerprint == report.fingerprint
    with open_dataset(str(tmp_path), fingerprint=old.fingerprint) as dataset:
        assert 50 == dataset.sample_count


def test_no_shards_at_all(tmp_path: Path, manifest: Manifest) -> None:
    """Where nothing is left nothing is written, and an empty folder is told as such."""
    _lose("shards/*")(tmp_path)
    with pytest.raises(BadArgumentError, match="none of the 3 shards"):
        repair_manifest(open_store(str(tmp_path)))
    with pytest.raises(BadArgumentError, match="there are no shards"):
        repair_manifest(open_store(str(tmp_path / "nothing")))

    with open_dataset(str(tmp_path)) as dataset:
        assert manifest.fingerprint == dataset.fingerprint


def test_a_commit_in_between_wins(tmp_path: Path, manifest: Manifest) -> None:
    """A repair that meets a commit changes nothing and says so."""
    _lose("shards/a-00001.arrow")(tmp_path)
    store = open_store(str(tmp_path))
    entry = write_shard(store, "late.arrow", [numbered_batch(0, 7)])

    def commit(done: int, total: int) -> None:
        if done == total:
            commit_dataset(store, _SCHEMA, [entry], mode="overwrite")

    with pytest.raises(CommitConflictError):
        repair_manifest(store, progress=commit)

    assert list(range(7)) == _numbers(str(tmp_path))
    assert manifest.sample_count == 120
