"""Shards smaller than a block are asked for with one option, and blocks follow."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.group import run
from headrace.converter import WriteOptions, convert_files
from headrace.errors import BadArgumentError
from headrace.storage import open_dataset

_ROWS = pa.table({"id": range(64), "bytes": [bytes(1024)] * 64})


def _source(folder: Path) -> str:
    pq.write_table(_ROWS, folder / "a.parquet")
    return str(folder / "a.parquet")


def _raw_bytes(url: Path) -> tuple[list[int], list[int]]:
    with open_dataset(str(url)) as dataset:
        samples = [dataset.block_sample_range(block) for block in range(dataset.block_count)]
        return dataset.shard_raw_bytes.tolist(), [stop - start for start, stop in samples]


@pytest.mark.parametrize("shard_bytes", [5000, 1 << 14])
def test_small_shards_have_blocks_of_their_size(tmp_path: Path, shard_bytes: int) -> None:
    """Without a word on blocks, which would be larger."""
    convert_files(
        _source(tmp_path),
        str(tmp_path / "d"),
        source_format="parquet",
        write=WriteOptions(shard_bytes=shard_bytes),
    )
    shards, blocks = _raw_bytes(tmp_path / "d")

    assert len(shards) == len(blocks) > 3
    assert max(shards) <= shard_bytes
    assert 64 == sum(blocks)


def test_the_command_takes_small_shards(tmp_path: Path) -> None:
    """``--shard-bytes`` alone, as somebody who tries the tool on a small file writes it."""
    target = tmp_path / "d"

    assert 0 == run(["convert", _source(tmp_path), str(target), "--shard-bytes", "16KiB"])
    assert 4 < len(_raw_bytes(target)[0])


def test_blocks_that_were_asked_for_are_kept_or_refused(tmp_path: Path) -> None:
    """A block of more than a shard, said by the caller, is a contradiction."""
    source = _source(tmp_path)
    convert_files(
        source,
        str(tmp_path / "d"),
        source_format="parquet",
        write=WriteOptions(shard_bytes=1 << 15, block_bytes=1 << 12),
    )
    shards, blocks = _raw_bytes(tmp_path / "d")

    assert len(shards) < len(blocks)
    with pytest.raises(BadArgumentError, match=r"shard_bytes is 4096.*leave block_bytes out"):
        convert_files(
            source,
            str(tmp_path / "e"),
            source_format="parquet",
            write=WriteOptions(shard_bytes=1 << 12, block_bytes=1 << 15),
        )
