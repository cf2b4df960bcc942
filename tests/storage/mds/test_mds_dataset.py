"""An MDS dataset as those who read samples see it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import (
    BadArgumentError,
    NotADatasetError,
    ObjectNotFoundError,
    ShardCorruptError,
)
from headrace.storage import (
    OpenDataset,
    SourceOptions,
    Store,
    open_dataset,
    open_store,
)
from headrace.storage.mds import ENCODING_KEY, FORMAT_KEY, MdsDataset, decode_index
from headrace.storage.mds.layout import BLOCK_BYTES
from headrace.storage.store.local.local_store import LocalStore
from storage.mds.mds_make import change_index, change_words, index_of, texts, write_mds
from storage.mds.mds_values import table_of
from support.datasets import write_dataset
from support.s3 import S3
from support.threads import at_once

GOLDEN = Path(__file__).parent / "golden"


class CountingStore(LocalStore):
    """A directory that notes what is read, and may spoil the next reads of shards."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reads: list[tuple[str, int, int | None]] = []
        self.spoiled = 0

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Read, and note what."""
        self.reads.append((name, offset, length))
        content = super().read(name, offset=offset, length=length)
        if name.endswith(".mds") and self.spoiled:
            self.spoiled -= 1
            return bytes(len(content))
        return content


def _open(store: Store) -> MdsDataset:
    return MdsDataset(store, decode_index(store.read("index.json"), place="index.json"))


def _large(count: int) -> pa.Table:
    return pa.table(
        {"id": np.arange(count), "blob": [bytes([i % 256]) * 60_000 for i in range(count)]}
    )


def test_samples_of_all_shards_come_in_order(tmp_path: Path) -> None:
    """The samples of a dataset are those of its shards, one after another."""
    table = texts(500)
    write_mds(tmp_path, table, size_limit=2000)

    with open_dataset(str(tmp_path)) as dataset:
        assert dataset.shard_count > 5
        assert table.to_pydict() == table_of(dataset).to_pydict()


def test_located_samples_are_in_their_blocks(tmp_path: Path) -> None:
    """A sample is at the offset of the block that locate gives, whatever is asked."""
    write_mds(tmp_path, texts(500), size_limit=2000, compression="zstd")
    ids = np.array([499, 0, 250, 250, 7])

    with open_dataset(str(tmp_path)) as dataset:
        blocks, offsets = dataset.locate(ids)
        found = [
            dataset.read_block(int(block)).column("number")[int(offset)].as_py()
            for block, offset in zip(blocks, offsets, strict=True)
        ]
        firsts = dataset.block_first_samples(blocks)

    assert ids.tolist() == found
    assert ids.tolist() == (firsts + offsets).tolist()


def test_sizes_add_up(tmp_path: Path) -> None:
    """The bytes of whole-shard blocks are those of the shards."""
    write_mds(tmp_path, texts(500), size_limit=2000, compression="zstd")

    with open_dataset(str(tmp_path)) as dataset:
        blocks = np.arange(dataset.block_count)
        assert dataset.raw_bytes == dataset.block_raw_bytes(blocks).sum()
        assert dataset.stored_bytes == dataset.block_stored_bytes(blocks).sum()
        assert dataset.raw_bytes == dataset.shard_raw_bytes.sum()
        assert dataset.stored_bytes == sum(
            path.stat().st_size for path in tmp_path.glob("*.mds.zstd")
        )


@pytest.mark.parametrize(
    ("options", "ranges"),
    [({}, True), ({"compression": "zstd"}, False), ({"hashes": ["xxh64"]}, False)],
)
def test_only_plain_shards_without_hashes_are_read_by_ranges(
    tmp_path: Path,
    options: dict[str, object],
    ranges: bool,  # noqa: FBT001 - what is expected
) -> None:
    """A shard that can only be verified whole is one block; any other is several."""
    write_mds(tmp_path, _large(40), **options)

    with open_dataset(str(tmp_path)) as dataset:
        assert (3 if ranges else 1) == dataset.block_count
        assert [14 if ranges else 40] == dataset.stretches().block_samples.tolist()
        assert list(range(40)) == table_of(dataset).column("id").to_pylist()


def test_a_range_read_fetches_its_block_and_the_header_once(tmp_path: Path) -> None:
    """Blocks of one shard cost one read of its header, and one of about 1 MiB each."""
    write_mds(tmp_path, _large(40))
    store = CountingStore(str(tmp_path))
    dataset = _open(store)
    for block in range(dataset.block_count):
        dataset.read_block(block)
    lengths = [length or 0 for name, _, length in store.reads if name != "index.json"]

    assert 4 * 42 < lengths[0] < 4 * 42 + 1024
    assert lengths[1:] == [size for size in lengths[1:] if size <= BLOCK_BYTES]
    assert 1 + dataset.block_count == len(lengths)


def test_opening_reads_the_index_and_a_header_of_each_schema(tmp_path: Path) -> None:
    """Blocks are known from the index alone, and columns are compared with one shard."""
    write_mds(tmp_path, _large(40), size_limit=1 << 20)
    store = CountingStore(str(tmp_path))
    _open(store).locate(np.arange(40))

    assert ["index.json", "shard.00000.mds"] == [name for name, _, _ in store.reads]


@pytest.mark.parametrize("options", [{}, {"hashes": ["xxh64"]}])
def test_what_was_damaged_on_the_way_is_fetched_again(
    tmp_path: Path, options: dict[str, object]
) -> None:
    """A block that arrives damaged once is right the second time; twice is an error."""
    write_mds(tmp_path, texts(10), **options)

    store = CountingStore(str(tmp_path))
    dataset = _open(store)
    store.spoiled = 1
    assert 10 == dataset.read_block(0).num_rows
    store.spoiled = 2
    with pytest.raises(ShardCorruptError):
        dataset.read_block(0)


def test_a_damaged_header_is_not_kept(tmp_path: Path) -> None:
    """When a shard is mended, its blocks read again without opening the dataset again."""
    write_mds(tmp_path, texts(10))
    path = tmp_path / "shard.00000.mds"
    content = path.read_bytes()
    with open_dataset(str(tmp_path)) as dataset:
        dataset.read_block(0)
        change_words(path, {4: int.from_bytes(content[8:12], "little")})
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ShardCorruptError):
            dataset.read_block(0)
        path.write_bytes(content)

        assert 10 == dataset.read_block(0).num_rows


def test_merged_folders_are_one_dataset(tmp_path: Path) -> None:
    """Shards in folders below the index are read in the order of the index."""
    write_mds(tmp_path, texts(5), folder="7")
    write_mds(tmp_path, texts(5, first=5), folder="10", compression="gz")

    with open_dataset(str(tmp_path)) as dataset:
        assert list(range(10)) == table_of(dataset).column("number").to_pylist()
        assert [5, 5] == dataset.stretches().block_samples.tolist()


def test_shards_of_different_schemas_are_one_schema(tmp_path: Path) -> None:
    """Numbers widen without loss, texts become bytes, and what a shard lacks is null."""
    write_mds(
        tmp_path,
        pa.table(
            {
                "n": pa.array([1], pa.int8()),
                "s": ["a"],
                "v": pa.array([[1]], pa.list_(pa.int8(), 1)),
            }
        ),
        folder="a",
    )
    write_mds(
        tmp_path,
        pa.table(
            {
                "extra": [2.5],
                "n": pa.array([2], pa.uint16()),
                "s": [b"\xff"],
                "v": pa.array([[2, 3]], pa.list_(pa.int8())),
            }
        ),
        folder="b",
    )

    with open_dataset(str(tmp_path)) as dataset:
        wanted = {"extra": [None, 2.5], "n": [1, 2], "s": [b"a", b"\xff"], "v": [[1], [2, 3]]}
        assert wanted == table_of(dataset).to_pydict()
        assert pa.int32() == dataset.schema.field("n").type
        assert [True, False, False, False] == [field.nullable for field in dataset.schema]


def test_shards_without_samples_are_no_blocks(tmp_path: Path) -> None:
    """An empty shard, which Mosaic writes before a large first sample, is never read."""
    write_mds(tmp_path, texts(3))
    shard = index_of(tmp_path)["shards"][0]
    empty, other = (
        {**shard, "samples": 0, "raw_data": {**shard["raw_data"], "basename": name}}
        for name in ("gone.mds", "lost.mds")
    )
    change_index(tmp_path, {("shards",): [empty, shard, other]})

    with open_dataset(str(tmp_path)) as dataset:
        assert [0, 3, 0] == dataset.shard_sample_counts.tolist()
        assert 1 == dataset.block_count
        assert ([0, 0, 0], [0, 1, 2]) == tuple(
            part.tolist() for part in dataset.locate(np.arange(3))
        )


def test_an_index_of_no_shards_is_a_dataset_of_no_samples(tmp_path: Path) -> None:
    """What Mosaic writes of nothing opens, and holds nothing."""
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')

    with open_dataset(str(tmp_path)) as dataset:
        assert (0, 0, 0) == (dataset.sample_count, dataset.shard_count, dataset.block_count)


def test_what_mosaic_has_unpacked_is_read_instead(tmp_path: Path) -> None:
    """A folder in which Mosaic's reader left the plain shard alone is read from that."""
    write_mds(tmp_path, texts(10), hashes=["sha1"], compression="zstd")
    packed = tmp_path / "shard.00000.mds.zstd"
    with pa.CompressedInputStream(pa.OSFile(str(packed), "rb"), "zstd") as stream:
        (tmp_path / "shard.00000.mds").write_bytes(stream.read())
    packed.unlink()

    with open_dataset(str(tmp_path)) as dataset:
        assert list(range(10)) == table_of(dataset).column("number").to_pylist()


def test_a_shard_that_is_gone_is_named(tmp_path: Path) -> None:
    """A shard that is not in the store is ObjectNotFoundError, with its name."""
    write_mds(tmp_path, texts(10), compression="zstd")
    (tmp_path / "shard.00000.mds.zstd").unlink()

    with (
        open_dataset(str(tmp_path)) as dataset,
        pytest.raises(ObjectNotFoundError, match=r"shard\.00000\.mds"),
    ):
        dataset.read_block(0)


def test_pickles_are_bytes_where_they_are_allowed() -> None:
    """A column of pickles is served as it is stored, and its format is noted."""
    with open_dataset(
        str(GOLDEN / "plain"), source_options=SourceOptions(allow_pickle=True)
    ) as dataset:
        field = dataset.schema.field("pkl")

    assert pa.binary() == field.type
    assert {ENCODING_KEY: b"pkl", FORMAT_KEY: b"pickle"} == field.metadata


def test_a_wanted_fingerprint_is_compared(tmp_path: Path) -> None:
    """Opening by fingerprint gives that version or says which there is."""
    write_mds(tmp_path, texts(3))
    with open_dataset(str(tmp_path)) as dataset:
        fingerprint = dataset.fingerprint

    with open_dataset(str(tmp_path), fingerprint=fingerprint) as again:
        assert fingerprint == again.fingerprint
    with pytest.raises(NotADatasetError, match=fingerprint):
        open_dataset(str(tmp_path), fingerprint="0" * 32)


def test_the_fingerprint_is_of_what_is_read(tmp_path: Path) -> None:
    """Order of keys and limits of the writer do not change the fingerprint; samples do."""
    write_mds(tmp_path, texts(30))
    shard = index_of(tmp_path)["shards"][0]

    def fingerprint() -> str:
        with open_dataset(str(tmp_path)) as dataset:
            return dataset.fingerprint

    first = fingerprint()
    change_index(tmp_path, {("shards", 0): dict(reversed(shard.items()))})
    change_index(tmp_path, {("shards", 0, "size_limit"): 7})
    assert first == fingerprint()
    change_index(tmp_path, {("shards", 0, "samples"): 29})
    assert first != fingerprint()


def test_a_named_source_is_used(tmp_path: Path) -> None:
    """Where two sources' datasets lie side by side, our own is found unless another is named."""
    write_mds(tmp_path / "other", texts(3))
    write_dataset(str(tmp_path), texts(9), shard_samples=[9])
    shutil.copytree(tmp_path / "other", tmp_path, dirs_exist_ok=True)  # no writer puts it there

    with open_dataset(str(tmp_path)) as dataset:
        assert 9 == dataset.sample_count
    with open_dataset(str(tmp_path), source_options=SourceOptions(source="mds")) as dataset:
        assert 3 == dataset.sample_count
    with pytest.raises(BadArgumentError, match="'tar'"):
        open_dataset(str(tmp_path), source_options=SourceOptions(source="tar"))


def test_several_threads_read_the_same(tmp_path: Path) -> None:
    """Blocks read by many threads at once are those read by one."""
    write_mds(tmp_path, _large(40), size_limit=1 << 21)
    with open_dataset(str(tmp_path)) as dataset:
        found: list[list[object]] = []
        at_once(lambda _: _read_into(dataset, found), range(8))

    assert [list(range(40))] * 8 == found


def _read_into(dataset: OpenDataset, found: list[list[object]]) -> None:
    found.append(list(table_of(dataset).column("id").to_pylist()))


def test_an_s3_bucket_serves_as_well(s3: S3, tmp_path: Path) -> None:
    """A dataset in an object store reads as one on a disk does, whole shards and ranges."""
    for name, options in {"plain": {}, "zstd": {"compression": "zstd"}}.items():
        folder = tmp_path / name
        write_mds(folder, _large(40), **options)
        store = open_store(s3.url(name))
        for path in folder.iterdir():
            store.write(path.name, path.read_bytes())
        shutil.rmtree(folder)

        with open_dataset(s3.url(name)) as dataset:
            assert list(range(40)) == table_of(dataset).column("id").to_pylist()
