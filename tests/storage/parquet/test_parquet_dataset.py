"""Parquet files read as plain pyarrow reads them, sample by sample."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    NotADatasetError,
    ObjectNotFoundError,
    ShardCorruptError,
    UnsupportedColumnError,
)
from headrace.storage import SourceOptions, open_dataset
from headrace.storage.parquet import ParquetDataset, open_parquet
from storage.parquet.parquet_cases import all_samples, random_table, table_of, write_file


def test_file_reads_as_pyarrow_reads_it(tmp_path: Path) -> None:
    """All blocks of one file, one after another, are its rows."""
    path = write_file(tmp_path / "one.parquet", table_of(range(250)))

    with open_parquet(str(path)) as dataset:
        found = all_samples(dataset)

    assert pq.read_table(path).to_pylist() == found.to_pylist()


def test_file_url_is_a_path_too(tmp_path: Path) -> None:
    """A file is found by a file:// URL, and by a relative path beside it."""
    path = write_file(tmp_path / "one.parquet", table_of(range(10)))
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        fingerprints = [open_parquet(url).fingerprint for url in (f"file://{path}", "one.parquet")]
    finally:
        os.chdir(before)

    assert [open_parquet(str(path)).fingerprint] * 2 == fingerprints


def test_directory_is_its_files_by_name(tmp_path: Path) -> None:
    """Files come in the order of their names; hidden ones and other kinds are no shards."""
    write_file(tmp_path / "b.parquet", table_of(range(100, 150)))
    write_file(tmp_path / "a.parquet", table_of(range(100)))
    write_file(tmp_path / "_temporary" / "c.parquet", table_of(range(9)))
    write_file(tmp_path / ".hidden.parquet", table_of(range(9)))
    (tmp_path / "README.md").write_text("flowers")
    (tmp_path / "_SUCCESS").touch()

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset)

    assert list(range(150)) == found.column("number").to_pylist()


def test_counts_are_those_of_the_footers(tmp_path: Path) -> None:
    """Shards are files, blocks are row groups that hold rows, empty files are empty shards."""
    write_file(tmp_path / "a.parquet", table_of(range(250)))
    write_file(tmp_path / "b.parquet", table_of([]))
    write_file(tmp_path / "c.parquet", table_of(range(7)))

    with open_parquet(str(tmp_path)) as dataset:
        sizes = sum(path.stat().st_size for path in tmp_path.iterdir())

        assert (257, 3, 4) == (dataset.sample_count, dataset.shard_count, dataset.block_count)
        assert [250, 0, 7] == dataset.shard_sample_counts.tolist()
        assert sizes == dataset.stored_bytes
        assert dataset.raw_bytes == dataset.shard_raw_bytes.sum()
        assert [(0, 100), (100, 200), (200, 250), (250, 257)] == [
            dataset.block_sample_range(block) for block in range(4)
        ]


def test_raw_bytes_follow_from_the_footer(tmp_path: Path) -> None:
    """Numbers count their width however well they are packed; golden for one file."""
    table = pa.table({"same": pa.array([5] * 1000, pa.int64())})
    write_file(tmp_path / "a.parquet", table, row_group_size=1000)

    with open_parquet(str(tmp_path)) as dataset:
        assert [8000] == dataset.block_raw_bytes(np.array([0])).tolist()
        assert dataset.block_stored_bytes(np.array([0]))[0] < 300


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 60), min_size=1, max_size=5),
    group=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_located_samples_are_the_rows(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], group: int, seed: int
) -> None:
    """Any sample id leads to the row of that number in the files laid end to end."""
    folder = tmp_path_factory.mktemp("located")
    counts[0] += 1
    starts = np.cumsum([0, *counts])
    for index, (start, stop) in enumerate(itertools.pairwise(starts)):
        write_file(folder / f"{index}.parquet", table_of(range(start, stop)), row_group_size=group)
    ids = np.random.default_rng(seed).integers(0, starts[-1], 20)

    with open_parquet(str(folder)) as dataset:
        blocks, offsets = dataset.locate(ids)
        found = [
            dataset.read_block(int(block)).column("number")[int(offset)].as_py()
            for block, offset in zip(blocks, offsets, strict=True)
        ]
        firsts = dataset.block_first_samples(blocks)

    assert ids.tolist() == found
    assert ids.tolist() == (firsts + offsets).tolist()


def test_open_dataset_knows_parquet(tmp_path: Path) -> None:
    """The one function that opens datasets finds files and folders, and names what it missed."""
    path = write_file(tmp_path / "data" / "one.parquet", table_of(range(20)))
    (tmp_path / "empty").mkdir()

    with open_dataset(str(path)) as file, open_dataset(str(path.parent)) as folder:
        assert isinstance(file, ParquetDataset)
        assert file.fingerprint == folder.fingerprint
    with pytest.raises(NotADatasetError, match=r"\*\.parquet"):
        open_dataset(str(tmp_path / "empty"))
    with pytest.raises(NotADatasetError, match="no versions"):
        open_dataset(str(path), source_options=SourceOptions(table_version=3))


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    """One file or several that hold a schema alone are told as such, each in its number."""
    one = write_file(tmp_path / "one.parquet", table_of(range(0)))

    with pytest.raises(NotADatasetError, match=r"the Parquet file at .* has no samples, .* least"):
        open_dataset(str(one))
    write_file(tmp_path / "two.parquet", table_of(range(0)))
    with pytest.raises(NotADatasetError, match=r"the 2 Parquet files at .* have no samples"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("mark", "form"),
    [
        ("metadata/00001-6c3a.metadata.json", "Iceberg"),
        ("metadata/v2.metadata.json", "Iceberg"),
        ("metadata/v2.gz.metadata.json", "Iceberg"),
        ("table/metadata/v1.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("table/.hoodie/20260101.commit", "Hudi"),
    ],
)
def test_tables_that_hold_replaced_files_are_refused(tmp_path: Path, mark: str, form: str) -> None:
    """Files of other snapshots would be served as samples; the error says what to do instead."""
    write_file(tmp_path / "data" / "00000-replaced.parquet", table_of(range(5)))
    write_file(tmp_path / "data" / "00001-current.parquet", table_of(range(5)))
    other = tmp_path / mark
    other.parent.mkdir(parents=True)
    other.write_bytes(b"{}")

    for options in (SourceOptions(), SourceOptions(source="parquet")):
        with pytest.raises(ConfigurationError, match=f"an? {form} table") as found:
            open_dataset(str(tmp_path), source_options=options)
        assert mark in str(found.value)
        assert f'write_shards(spark.read.format("{form.lower()}")' in str(found.value)


def test_other_metadata_is_no_table(tmp_path: Path) -> None:
    """Folders and files of similar names are left out, as any other file."""
    write_file(tmp_path / "data" / "0.parquet", table_of(range(5)))
    for name in ("metadata/schema.json", "other/v1.metadata.json", "hoodie/a", "metadata.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"{}")

    with open_dataset(str(tmp_path)) as dataset:
        assert 5 == dataset.sample_count


def test_other_fingerprint_is_refused(tmp_path: Path) -> None:
    """Asking for a version by fingerprint gives that version or an error with both."""
    path = write_file(tmp_path / "one.parquet", table_of(range(20)))
    own = open_parquet(str(path)).fingerprint

    with open_dataset(str(path), fingerprint=own) as dataset:
        assert own == dataset.fingerprint
    with pytest.raises(NotADatasetError, match=own):
        open_dataset(str(path), fingerprint="0" * 32)


def test_fingerprint_outlives_a_copy(tmp_path: Path) -> None:
    """A copy on another disk has the fingerprint of its original, other content has another."""
    write_file(tmp_path / "a" / "one.parquet", table_of(range(200)))
    write_file(tmp_path / "b" / "one.parquet", table_of(range(1, 201)))
    copy = tmp_path / "c" / "one.parquet"
    copy.parent.mkdir()
    copy.write_bytes((tmp_path / "a" / "one.parquet").read_bytes())
    os.utime(copy, (1, 1))

    first, other, again = (open_parquet(str(tmp_path / name)).fingerprint for name in "abc")

    assert first == again
    assert first != other


def test_replaced_file_is_noticed(tmp_path: Path) -> None:
    """A file that is replaced after opening is an error that says so, but not what is there."""
    path = write_file(tmp_path / "one.parquet", table_of(range(200)))
    with open_parquet(str(path)) as dataset:
        dataset.read_block(0)
        write_file(path, table_of(range(300)))
        os.utime(path, ns=(5, 5))

        with pytest.raises(
            ShardCorruptError, match=r"has changed since .* another size;"
        ) as caught:
            dataset.read_block(1)

    assert "one.parquet" == caught.value.metadata["shard"]


def test_vanished_file_is_no_damage(tmp_path: Path) -> None:
    """A file that is gone is an ObjectNotFoundError."""
    path = write_file(tmp_path / "one.parquet", table_of(range(200)))
    with open_parquet(str(path)) as dataset:
        path.unlink()

        with pytest.raises(ObjectNotFoundError):
            dataset.read_block(0)


def test_nothing_at_a_url(tmp_path: Path) -> None:
    """No file, no Parquet file and no sample are three errors."""
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.csv").write_text("1")
    (tmp_path / "text" / "b.csv").write_text("1")
    write_file(tmp_path / "one" / "_hidden.parquet", table_of(range(3)))
    write_file(tmp_path / "none" / "a.parquet", table_of([]))

    for name, found in (
        ("absent", "no file"),
        ("text", "none of the 2"),
        ("one", "none of the 1"),
        ("none", "no samples"),
    ):
        with pytest.raises(NotADatasetError, match=found):
            open_parquet(str(tmp_path / name))


def test_arguments_are_checked(tmp_path: Path) -> None:
    """Ids and ordinals outside their range are refused with the value."""
    path = write_file(tmp_path / "one.parquet", table_of(range(20)))

    with open_parquet(str(path)) as dataset:
        for call in (
            lambda: dataset.locate(np.array([20])),
            lambda: dataset.locate(np.array([-1])),
            lambda: dataset.read_block(1),
            lambda: dataset.block_raw_bytes(np.array([7])),
        ):
            with pytest.raises(BadArgumentError, match="is not in"):
                call()


def test_large_row_groups_draw_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Row groups beyond 16 MiB are read whole for any sample, and a warning says what to do."""
    table = pa.table({"zero": np.zeros(2_200_000)})
    write_file(tmp_path / "large.parquet", table, row_group_size=2_200_000)
    write_file(tmp_path / "small" / "a.parquet", random_table(500))

    open_parquet(str(tmp_path / "large.parquet")).close()
    assert "row groups of up to 16 MiB" in caplog.text
    caplog.clear()
    open_parquet(str(tmp_path / "small")).close()
    assert "row groups" not in caplog.text


def test_progress_counts_footers(tmp_path: Path) -> None:
    """The callback hears of every footer, in the opening thread, in order."""
    for index in range(5):
        write_file(tmp_path / f"{index}.parquet", table_of(range(3)))
    heard: list[tuple[int, int]] = []

    open_parquet(str(tmp_path), progress=lambda done, total: heard.append((done, total))).close()

    assert [(done, 5) for done in range(1, 6)] == heard


def test_missing_column_names_file_and_column(tmp_path: Path) -> None:
    """A file without a column that others have is refused by name."""
    write_file(tmp_path / "a.parquet", table_of(range(3)))
    write_file(tmp_path / "b.parquet", table_of(range(3)).drop_columns(["text"]))

    with pytest.raises(UnsupportedColumnError, match=r"b\.parquet has no column 'text'"):
        open_parquet(str(tmp_path))
