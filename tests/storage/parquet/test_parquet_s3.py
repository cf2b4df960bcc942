"""Parquet files in a real bucket: few requests, and changes noticed by entity tag."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import NotADatasetError, ShardCorruptError, StoreRefusedError
from headrace.storage import StoreOptions, open_dataset
from headrace.storage.parquet import decode_index, encode_index, open_parquet
from headrace.storage.store.open_store import open_store
from storage.parquet.parquet_cases import all_samples, random_table, table_of
from support.s3 import S3
from support.store_proxy import store_proxied


def _put(s3: S3, name: str, table: pa.Table, *, row_group_size: int = 100) -> None:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=row_group_size, write_page_checksum=True)
    client = s3.weed.client()
    client.put_object(Bucket=s3.weed.bucket, Key=s3.key(name), Body=sink.getvalue())
    client.close()


def test_bucket_reads_as_local_files(s3: S3) -> None:
    """A folder and a single object give the samples that were put there."""
    _put(s3, "d/a.parquet", table_of(range(250)))
    _put(s3, "d/k/b.parquet", table_of(range(250, 300)))

    with open_dataset(s3.url("d")) as folder, open_parquet(s3.url("d/a.parquet")) as file:
        blocks = [folder.read_block(block) for block in range(folder.block_count)]
        numbers = pa.Table.from_batches(blocks).column("number").to_pylist()

        assert list(range(300)) == numbers
        assert table_of(range(250)).to_pylist() == all_samples(file).to_pylist()


def test_block_is_one_request(s3: S3) -> None:
    """A row group of many columns costs one ranged GET, and a file one more for its footer."""
    _put(s3, "d/a.parquet", random_table(1000), row_group_size=250)

    with store_proxied(s3.weed.endpoint) as proxy:
        options = StoreOptions(endpoint=proxy.endpoint)
        with open_parquet(s3.url("d"), options=options) as dataset:
            assert 4 == dataset.block_count
            proxy.seen.clear()
            for block in range(dataset.block_count):
                dataset.read_block(block)

    assert 4 + 1 == len(proxy.seen)


def test_replaced_object_is_noticed_by_its_tag(s3: S3) -> None:
    """An object of the same size and shape with other content is an error."""
    plain = pa.table({"n": [1, 2, 3]})
    _put(s3, "d/a.parquet", plain)
    with open_parquet(s3.url("d")) as dataset:
        index = decode_index(encode_index(dataset.index), place="here")
        dataset.read_block(0)
        _put(s3, "d/a.parquet", pa.table({"n": [1, 2, 4]}))

        with pytest.raises(ShardCorruptError, match=r"a\.parquet in .* has changed"):
            dataset.read_block(0)
    with pytest.raises(ShardCorruptError, match=r"a\.parquet in .* has changed"):
        open_parquet(s3.url("d"), index=index)


def test_fingerprint_holds_the_tag(s3: S3) -> None:
    """The same object put again has the same fingerprint, in whatever bucket folder."""
    _put(s3, "d/a.parquet", table_of(range(30)))
    _put(s3, "e/a.parquet", table_of(range(30)))

    assert open_parquet(s3.url("d")).fingerprint == open_parquet(s3.url("e")).fingerprint


def test_refusal_and_absence_differ(s3: S3) -> None:
    """A wrong key is a refusal, a prefix of nothing is not a dataset."""
    _put(s3, "d/a.parquet", table_of(range(30)))
    wrong = StoreOptions(access_key="nobody", secret_key="wrong")  # noqa: S106 - no secret

    with pytest.raises(StoreRefusedError):
        open_parquet(s3.url("d"), options=wrong)
    with pytest.raises(NotADatasetError):
        open_parquet(s3.url("nothing"))


def test_any_fsspec_store_works(tmp_path: Path) -> None:
    """A file system that only fsspec knows is read, and noticed when a file ends early."""
    import fsspec  # noqa: PLC0415 - only here

    memory = fsspec.filesystem("memory")
    sink = io.BytesIO()
    pq.write_table(table_of(range(50)), sink)
    memory.pipe_file(f"/{tmp_path.name}/a.parquet", sink.getvalue())

    with open_dataset(f"memory://{tmp_path.name}") as dataset:
        assert list(range(50)) == dataset.read_block(0).column("number").to_pylist()
        memory.pipe_file(f"/{tmp_path.name}/a.parquet", b"PAR1")
        with pytest.raises(ShardCorruptError, match="has changed"):
            dataset.read_block(0)
    files = open_store(f"memory://{tmp_path.name}", options=StoreOptions())
    assert ["a.parquet"] == [entry.name for entry in files.list_entries()]
    assert files.entry("nothing") is None
