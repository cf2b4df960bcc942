"""Tests of lengths that are stored at conversion: those of the data, which need not be read.

How they could be wrong: of shards in another order, of shards that were merged, of an append that
begins elsewhere; and a conversion must stand where they cannot be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from headrace.cli.stored.row_counter import row_counter
from headrace.converter import WriteOptions, convert_files, write_shards
from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage import (
    PackingPointer,
    RowOptions,
    StoredLengths,
    index_packing,
    open_dataset,
    open_store,
    read_packing,
)

_SMALL: dict[str, Any] = {"block_bytes": 2048, "shard_bytes": 8192}
_WITH = WriteOptions(lengths="tokens", **_SMALL)


def _convert(source: Path, url: str, **settings: Any) -> None:
    convert_files(str(source), url, source_format="parquet", **settings)


def _parquet(path: Path, lengths: Sequence[int | None]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokens = [None if each is None else list(range(each)) for each in lengths]
    table = pa.table(
        {
            "tokens": pa.array(tokens, pa.list_(pa.int32())),
            "n": pa.array(range(len(lengths)), pa.int64()),
        }
    )
    pq.write_table(table, path / "part.parquet")
    return path


def _lengths(count: int, *, seed: int) -> list[int | None]:
    drawn: list[int | None] = np.random.default_rng(seed).integers(0, 200, count).tolist()
    drawn[7] = None
    return drawn


def _index(url: str, length: int = 256) -> PackingPointer:
    return index_packing(url, RowOptions(length), count_rows=row_counter(), columns=["tokens"])


def _stored(url: str) -> list[int]:
    with open_dataset(url) as dataset:
        pointer = read_packing(open_store(url), dataset.fingerprint)
    assert pointer is not None
    assert pointer.rows == ()
    stored = StoredLengths(open_store(url), pointer)
    return [
        length
        for group in range(len(stored.groups))
        for length in stored.read_group(group).tolist()
    ]


def test_lengths_are_those_of_the_data_which_is_not_read_again(tmp_path: Path) -> None:
    """`headrace index` makes the same of them as without, and also if the shards are gone."""
    source = _parquet(tmp_path / "source", _lengths(300, seed=1))
    urls = [str(tmp_path / name) for name in ("with", "without")]
    for url, write in zip(urls, (_WITH, WriteOptions(**_SMALL)), strict=True):
        _convert(source, url, write=write)

    assert [each or 0 for each in _lengths(300, seed=1)] == _stored(urls[0])
    for shard in (tmp_path / "with" / "shards").iterdir():
        shard.unlink()
    noted, read = map(_index, urls)

    assert read.lengths.digest == noted.lengths.digest
    assert read.groups.digest == noted.groups.digest
    assert [each.counts.digest for each in read.rows] == [each.counts.digest for each in noted.rows]


def test_an_append_adds_its_lengths(tmp_path: Path) -> None:
    """Without those before them, nothing is stored, and the log says what to do."""
    parts = [_lengths(100, seed=seed) for seed in (1, 2)]
    sources = [_parquet(tmp_path / f"{at}", part) for at, part in enumerate(parts)]
    url = str(tmp_path / "dataset")

    _convert(sources[0], url, write=_WITH)
    _convert(sources[1], url, write=_WITH, mode="append")

    assert [each or 0 for part in parts for each in part] == _stored(url)


def test_rows_of_all_lengths_are_counted_after_an_append(tmp_path: Path) -> None:
    """By one run of the index for one length, as where nothing was noted."""
    source = _parquet(tmp_path / "source", _lengths(100, seed=1))
    urls = [str(tmp_path / name) for name in ("with", "without")]
    made = []
    for url, write in zip(urls, (_WITH, WriteOptions(**_SMALL)), strict=True):
        _convert(source, url, write=write)
        for length in (256, 300):
            _index(url, length)
        _convert(source, url, write=write, mode="append")
        rows = _index(url, 256).rows
        made.append([(each.options, each.counts.digest) for each in rows])

    assert len(made[0]) == 2
    assert made[1] == made[0]


def test_an_append_to_samples_without_lengths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Is committed without, and the log says what to do; the index reads all."""
    source = _parquet(tmp_path / "source", _lengths(100, seed=1))
    url = str(tmp_path / "dataset")
    _convert(source, url, write=WriteOptions(**_SMALL))

    _convert(source, url, write=_WITH, mode="append")

    assert "headrace index URL --pack-length L" in caplog.text
    with open_dataset(url) as dataset:
        assert read_packing(open_store(url), dataset.fingerprint) is None
    assert _index(url).sample_count == 200


def test_columns_that_hold_no_lists_are_refused_before_the_job(tmp_path: Path) -> None:
    """Nothing is written."""
    source = _parquet(tmp_path / "source", _lengths(20, seed=1))
    url = tmp_path / "dataset"
    for column, error in (("n", BadArgumentError), ("none", ColumnNotFoundError)):
        with pytest.raises(error):
            _convert(source, str(url), write=WriteOptions(lengths=column))
        assert [] == list(url.glob("shards/*"))
    with pytest.raises(BadArgumentError, match="leave it out"):
        _convert(source, str(url), write=WriteOptions(lengths="tokens"), format="mds")


@pytest.mark.long
def test_spark_stores_the_lengths_of_merged_shards(spark: SparkSession, tmp_path: Path) -> None:
    """In the order of samples, with splits for each."""
    lengths = _lengths(240, seed=3)
    source = _parquet(tmp_path / "source", lengths)
    frame = spark.read.parquet(str(source)).repartition(12)
    url = str(tmp_path / "dataset")

    write_shards(frame, url, write=WriteOptions(lengths="tokens"))

    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    numbers: list[Any] = [number for block in blocks for number in block.column("n").to_pylist()]
    assert [lengths[number] or 0 for number in numbers] == _stored(url)
