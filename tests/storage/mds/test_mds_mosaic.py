"""The real mosaicml-streaming, both ways; in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.storage import SourceOptions, open_dataset, open_store
from headrace.storage.mds import MdsWriter, commit_mds
from headrace.storage.mds.hashes import HASHES, digest_of
from storage.mds.mds_make import index_of
from storage.mds.mds_values import rendered_samples
from storage.mds.mosaic_environment import Mosaic, mosaic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

TRUSTED = SourceOptions(allow_pickle=True)
SAMPLES = 12
COMPRESSIONS = ["", "br:5", "bz2", "gz", "snappy", "zstd:7"]
ALL_HASHES = (
    "blake2b,blake2s,md5,sha1,sha224,sha256,sha384,sha3_224,sha3_256,sha3_384,sha3_512,sha512,"
    "xxh128,xxh32,xxh3_128,xxh3_64,xxh64"
)


@pytest.fixture(scope="module")
def real() -> Mosaic:
    """Give the real package."""
    return mosaic()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_mosaic_writes_we_read(real: Mosaic, tmp_path: Path, compression: str) -> None:
    """Every encoding under every compression reads to the values that Mosaic's reader gives."""
    real.write(tmp_path, compression=compression, hashes=ALL_HASHES, sample_count=SAMPLES)

    with open_dataset(str(tmp_path), source_options=TRUSTED) as dataset:
        assert real.read(tmp_path) == rendered_samples(dataset)


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv"])
@pytest.mark.parametrize("compression", ["", "zstd:7"])
def test_lines_that_mosaic_writes_we_read(
    real: Mosaic, tmp_path: Path, form: str, compression: str
) -> None:
    """Shards of lines read to the values that Mosaic's reader gives."""
    real.write_text(tmp_path, form, compression=compression, sample_count=SAMPLES)

    with open_dataset(str(tmp_path)) as dataset:
        assert dataset.shard_count > 1
        assert real.read(tmp_path) == rendered_samples(dataset)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_we_write_mosaic_reads(real: Mosaic, tmp_path: Path, compression: str) -> None:
    """Every encoding that we write under every compression reads in Mosaic to the same values."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    real.write(theirs, compression="", hashes="", sample_count=SAMPLES)
    with open_dataset(str(theirs), source_options=TRUSTED) as dataset:
        store = open_store(str(ours))
        writer = MdsWriter(
            store,
            dataset.schema,
            compression=compression or None,
            hashes=ALL_HASHES.split(","),
            folder="part-0",
            size_limit=1 << 15,
        )
        for block in range(dataset.block_count):
            writer.append(dataset.read_block(block))
        commit_mds(store, writer.close())

    assert real.read(theirs) == real.read(ours)


def test_each_hash_is_the_one_that_mosaic_takes(real: Mosaic, tmp_path: Path) -> None:
    """All 17 hashes of a file are those that Mosaic's writer put into its index."""
    real.write(tmp_path, compression="", hashes=ALL_HASHES, sample_count=2)
    stated = index_of(tmp_path)["shards"][0]["raw_data"]
    content = (tmp_path / stated["basename"]).read_bytes()

    assert stated["hashes"] == {name: digest_of(name, content) for name in HASHES}
