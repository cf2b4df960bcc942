"""A folder whose writer has not finished, or that another program writes, is told as what it is."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from headrace.cli.group import run
from headrace.errors import NotADatasetError, ObjectNotFoundError
from headrace.storage import open_dataset, verify_blocks
from storage.mds.mds_make import texts, write_mds
from storage.mds.mosaic_environment import mosaic


def _told(url: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what opening says; commands say it too, `convert` before it writes anything."""
    with pytest.raises(NotADatasetError) as caught:
        open_dataset(str(url))
    written, is_hive = url.parent / "own", (url / "000000_0").exists()
    commands = [["inspect"], ["verify"], *([] if is_hive else [["convert", str(written)]])]
    for name, *more in commands:
        assert 0 != run([name, str(url), *more])
        said = capsys.readouterr().err
        assert caught.value.message.split("; ")[-1] in said
    assert not written.exists()
    return caught.value.message


def test_parts_without_a_merged_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As many writers leave them, until the last step; each opens by itself."""
    for part in range(12):
        write_mds(tmp_path / f"{part}", texts(3))

    message = _told(tmp_path, capsys)
    assert "index.json of MosaicML Streaming each: 0, 1, 10, 11, 2, 3, 4, 5, 6, …" in message
    assert f"merge_index('{tmp_path}')" in message
    with open_dataset(str(tmp_path / "3")) as dataset:
        assert 3 == dataset.sample_count


@pytest.mark.long
@pytest.mark.timeout(1500)  # of which most is for making the environment
def test_parts_merged_as_the_error_says(tmp_path: Path) -> None:
    """By the function that it names, of the real package."""
    for part in range(3):
        write_mds(tmp_path / f"{part}", texts(3, first=3 * part))
    code = f"from streaming.base.util import merge_index; merge_index({str(tmp_path)!r})"
    subprocess.run([mosaic().python, "-c", code], check=True, timeout=300)

    with open_dataset(str(tmp_path)) as dataset:
        blocks = [dataset.read_block(block)["number"].to_pylist() for block in range(3)]
    assert [[0, 1, 2], [3, 4, 5], [6, 7, 8]] == blocks


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_shards_without_an_index(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], compression: str | None
) -> None:
    """Which is written last."""
    write_mds(tmp_path, texts(30), compression=compression, size_limit=700)
    (tmp_path / "index.json").unlink()

    assert "no index.json, which is written last" in _told(tmp_path, capsys)


def test_an_index_before_its_last_shard(tmp_path: Path) -> None:
    """It may arrive first in a store: what is there is served, and `verify` names the rest."""
    write_mds(tmp_path, texts(60), size_limit=1000)
    shards = sorted(tmp_path.glob("shard.*"))
    shards[-1].unlink()

    with open_dataset(str(tmp_path)) as dataset:
        [fault] = verify_blocks(dataset, threads=1)
        assert shards[-1].name in fault.message
        assert 0 < dataset.read_block(0).num_rows
        with pytest.raises(ObjectNotFoundError):
            dataset.read_block(dataset.block_count - 1)


_LITDATA_INDEX = {
    "chunks": [{"chunk_bytes": 9, "chunk_size": 1, "dim": None, "filename": "chunk-0-0.bin"}],
    "config": {"chunk_bytes": 64_000_000, "compression": None, "data_format": ["int"]},
    "updated_at": "1795882699.9",
}


def test_datasets_of_litdata(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole, their index has the name of MosaicML's; half written, there is one for each rank."""
    for name in ("whole", "half"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chunk-0-0.bin").write_bytes(b"x" * 9)
    (tmp_path / "whole/index.json").write_text(json.dumps(_LITDATA_INDEX))
    (tmp_path / "half/0.index.json").write_text(json.dumps(_LITDATA_INDEX))

    assert "is the index of a LitData dataset" in _told(tmp_path / "whole", capsys)
    assert "LitData" in (half := _told(tmp_path / "half", capsys))
    assert "not finished" in half


def test_a_table_of_hive_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its files have no ending."""
    (tmp_path / "000000_0").write_bytes(b"PAR1")

    assert "000000_0, as a table of Hive has" in _told(tmp_path, capsys)
