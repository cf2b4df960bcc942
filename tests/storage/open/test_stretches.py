"""Whatever the layout, an order of version 2 knows its blocks and keeps them whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.order import Order, OrderSpec, table_of
from headrace.storage import OpenDataset, commit_dataset, open_dataset, open_store
from headrace.storage.mds import MdsWriter, commit_mds
from storage.webdataset.tar_files import samples, write_tar
from support.shards import numbered_batch, write_shard, write_shards_of

_ROW_BYTES = 8 << 10


def _rows(count: int) -> pa.Table:
    rows = [bytes([i % 256]) * _ROW_BYTES for i in range(count)]
    return pa.table({"x": pa.array(rows, pa.binary())})


def _ours(folder: Path) -> None:
    write_shards_of(str(folder), [numbered_batch(0, 300), numbered_batch(300, 640)])
    more = numbered_batch(640, 900)
    write_shards_of(str(folder), [more], mode="append", stem="more")


def _ours_uneven(folder: Path) -> None:
    store = open_store(str(folder))
    batch = pa.RecordBatch.from_pydict({"x": [b"a"] * 300 + [b"a" * 1000] * 40 + [b"a"] * 300})
    commit_dataset(store, batch.schema, [write_shard(store, "a", [batch], block_bytes=200)])


def _mds(folder: Path, compression: str | None) -> None:
    store, table = open_store(str(folder)), _rows(700)
    with MdsWriter(
        store, table.schema, compression=compression, hashes=[], size_limit=3 << 20
    ) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        commit_mds(store, writer.close())


def _tars(folder: Path) -> None:
    write_tar(folder / "a.tar", samples(0, 700, size=4000))
    write_tar(folder / "b.tar", samples(700, 950, size=9000))


def _even_groups(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(_rows(950), folder / "a.parquet", row_group_size=100)
    pq.write_table(_rows(50), folder / "b.parquet", row_group_size=100)


def _uneven_groups(folder: Path) -> None:
    folder.mkdir()
    for name, counts in {"a": [200, 300, 150, 400], "b": [150] * 3, "c": [0]}.items():
        with pq.ParquetWriter(folder / f"{name}.parquet", _rows(1).schema) as writer:
            for count in counts:
                writer.write_table(_rows(count))


_LAYOUTS: dict[str, tuple[Callable[[Path], None], int]] = {
    "headrace": (_ours, 3),
    "mds": (lambda folder: _mds(folder, None), 2),
    "mds, compressed": (lambda folder: _mds(folder, "zstd"), 2),
    "webdataset": (_tars, 2),
    "parquet": (_even_groups, 2),
    "parquet, groups that differ": (_uneven_groups, 5),
}


def _starts(dataset: OpenDataset) -> set[int]:
    blocks = np.arange(dataset.block_count)
    return {*dataset.block_first_samples(blocks).tolist(), dataset.sample_count}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_stretches_tell_where_blocks_begin(tmp_path: Path, layout: str) -> None:
    """Block samples of stretches give the first sample of every block of the dataset."""
    write, stretch_count = _LAYOUTS[layout]
    write(tmp_path / "d")

    with open_dataset(str(tmp_path / "d")) as dataset:
        stretches = dataset.stretches()
        stated, first = set(), 0
        for count, cut in zip(stretches.sample_counts, stretches.block_samples, strict=True):
            stated |= set(range(first, first + int(count), int(cut)))
            first += int(count)

        assert stretch_count <= len(stretches.sample_counts) <= 3 * stretch_count
        assert dataset.sample_count == first
        assert dataset.raw_bytes == stretches.raw_bytes.sum()
        assert _starts(dataset) == {*stated, first}


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_an_order_reads_each_block_once(tmp_path: Path, layout: str) -> None:
    """Neighbours of the layout that an order gives share their blocks with no others."""
    write, _ = _LAYOUTS[layout]
    write(tmp_path / "d")

    with open_dataset(str(tmp_path / "d")) as dataset:
        table = table_of(dataset.stretches())
        order = Order(OrderSpec(seed=3, shuffle_samples=1, run_bytes=1), table)
        ids = order.sample_ids(0, 0, dataset.sample_count)
        blocks = dataset.locate(ids)[0]
        visits = 1 + np.count_nonzero(np.diff(blocks))

        assert dataset.block_count == visits
        assert dataset.sample_count == len(np.unique(ids))


def test_small_row_groups_that_differ_stay_together(tmp_path: Path) -> None:
    """They are read for a part of their samples, as runs need it."""
    with pq.ParquetWriter(tmp_path / "a.parquet", _rows(1).schema) as writer:
        for count in (9, 10):
            writer.write_table(_rows(count))

    with open_dataset(str(tmp_path)) as dataset:
        assert [19] == dataset.stretches().sample_counts.tolist()
        assert [0] == dataset.stretches().block_samples.tolist()


def test_blocks_that_differ_are_said_to(tmp_path: Path) -> None:
    """A shard whose blocks differ states 0, and is served all the same."""
    _ours_uneven(tmp_path / "d")

    with open_dataset(str(tmp_path / "d")) as dataset:
        assert [0] == dataset.stretches().block_samples.tolist()
        assert 640 == sum(dataset.read_block(b).num_rows for b in range(dataset.block_count))
