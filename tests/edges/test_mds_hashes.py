"""A byte of a shard that we wrote for MosaicML Streaming does not change without a word."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.group import run
from headrace.converter import WriteOptions, convert_files
from headrace.errors import BadArgumentError, ShardCorruptError
from headrace.storage import Mode, open_dataset, verify_blocks
from headrace.storage.mds.hashes import HASHES, digest_of
from storage.mds.mds_values import rendered_samples
from storage.mds.mosaic_environment import mosaic

if TYPE_CHECKING:
    from collections.abc import Sequence

_FLIPS = 60  # under each compression


def _convert(folder: Path, *, mode: Mode = "error", **options: Any) -> Path:
    table = pa.table({"id": range(1000), "text": [f"sample {n} " * 3 for n in range(1000)]})
    pq.write_table(table, folder / "source.parquet")
    source, target = str(folder / "source.parquet"), folder / "mds"
    convert_files(
        source,
        str(target),
        source_format="parquet",
        format="mds",
        write=WriteOptions(shard_bytes=1 << 13, **options),
        mode=mode,
    )
    return target


def _shards(folder: Path) -> Sequence[dict[str, Any]]:
    index = json.loads((folder / "index.json").read_text())
    shards: Sequence[dict[str, Any]] = index["shards"]
    return shards


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_no_flipped_byte_is_served(tmp_path: Path, compression: str | None) -> None:
    """Each of 120 in all is found where it is read, and by what `headrace verify` does."""
    folder = _convert(tmp_path, compression=compression)
    shards = sorted(folder.glob("*/shard.*"))
    chance = random.Random(17)
    for _ in range(_FLIPS):
        shard = chance.choice(shards)
        before = shard.read_bytes()
        damaged = bytearray(before)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        shard.write_bytes(damaged)
        with open_dataset(str(folder)) as dataset:
            [fault] = verify_blocks(dataset, threads=1)

            assert fault.shard.endswith(shard.name)
            with pytest.raises(ShardCorruptError, match="xxh3_64"):
                dataset.read_block(fault.block)
        shard.write_bytes(before)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_an_index_states_the_hashes_of_files_as_they_are(
    tmp_path: Path, compression: str | None
) -> None:
    """One that is fast if nothing is said, of the raw file and of the compressed one."""
    folder = _convert(tmp_path, compression=compression)

    for shard in _shards(folder):
        assert ["xxh3_64"] == shard["hashes"] == list(shard["raw_data"]["hashes"])
        stored = shard["zip_data"] or shard["raw_data"]
        content = (folder / stored["basename"]).read_bytes()
        assert {"xxh3_64": digest_of("xxh3_64", content)} == stored["hashes"]


@pytest.mark.parametrize(("named", "found"), [("sha1, xxh64", ["sha1", "xxh64"]), ("none", [])])
def test_the_command_takes_names_of_hashes(tmp_path: Path, named: str, found: list[str]) -> None:
    """``none`` takes none, and shards are read by ranges then."""
    source, target = str(tmp_path / "source.parquet"), tmp_path / "mds"
    pq.write_table(pa.table({"text": ["sample" * 500] * 1000}), source)

    assert 0 == run(["convert", source, str(target), "--write", "mds", "--hashes", named])
    assert found == _shards(target)[0]["hashes"]
    with open_dataset(str(target)) as dataset:
        assert (1 if found else 3) == dataset.block_count


def test_all_hashes_can_be_named_and_no_others(tmp_path: Path) -> None:
    """Before anything is written; and blocks of our own shards have checksums of their own."""
    folder = _convert(tmp_path, hashes=sorted(HASHES))

    assert sorted(HASHES) == _shards(folder)[0]["hashes"]
    with pytest.raises(BadArgumentError, match="hashes hold \\['crc32'\\]"):
        _convert(tmp_path, hashes=["crc32"], mode="overwrite")
    with pytest.raises(BadArgumentError, match="which is for format='mds'"):
        convert_files(
            str(tmp_path / "source.parquet"),
            str(tmp_path / "own"),
            source_format="parquet",
            write=WriteOptions(hashes=["sha1"]),
        )
    assert not (tmp_path / "own").exists()


@pytest.mark.long
@pytest.mark.timeout(1500)  # of which most is for making the environment
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_mosaic_validates_what_we_write(tmp_path: Path, compression: str | None) -> None:
    """Its reader takes our hashes, and refuses a shard of which a byte is flipped."""
    folder = _convert(tmp_path, compression=compression, hashes=["xxh3_64", "sha1"])
    for hash_name in ("xxh3_64", "sha1"):
        with open_dataset(str(folder)) as dataset:
            assert rendered_samples(dataset) == mosaic().read(folder, validate_hash=hash_name)
    shard = max(folder.glob("*/shard.*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)

    with pytest.raises(AssertionError, match=r"[Cc]hecksum|hash"):
        mosaic().read(folder, validate_hash="sha1")
