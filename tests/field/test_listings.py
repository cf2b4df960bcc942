"""What a folder is does not depend on how many other files its listing begins with."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo.object_store import Weed
from headrace.cli.inputs.formats import detect_format
from headrace.converter import convert_files
from headrace.errors import DatasetExistsError
from headrace.storage import StoreOptions, open_dataset, open_store
from storage.webdataset.tar_files import samples, tar_bytes
from support.s3 import S3

_MANY = 1_100  # a page of S3's listing is 1,000


@pytest.fixture(scope="module")
def crowded(weed: Weed) -> str:
    """A folder with a page of checksum files, and nothing else yet."""
    url = weed.url("crowded")
    options = StoreOptions(
        endpoint=weed.endpoint, access_key=weed.access_key, secret_key=weed.secret_key
    )
    store = open_store(url, options=options)
    with ThreadPoolExecutor(8, thread_name_prefix="put") as pool:
        list(pool.map(lambda at: store.write(f".part-{at:05}.crc", b"crc"), range(_MANY)))
    return url


def _put_parquet(url: str) -> None:
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2, 3]}), sink)
    open_store(url).write("part-0.parquet", sink.getvalue())


def _put_tar(url: str) -> None:
    open_store(url).write("part-0.tar", tar_bytes(samples(0, 3)))


def _put_delta(url: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(
        url, pa.table({"x": [1, 2, 3]}), storage_options={"AWS_ALLOW_HTTP": "true"}
    )
    # Whoever reads the files without the log reads also those of its change feed.
    open_store(url).write("_change_data/cdc-0.parquet", b"PAR1")


@pytest.mark.parametrize(
    ("put", "expected"),
    [
        (_put_parquet, ("parquet", r"Parquet files \(part-0")),
        (_put_tar, ("webdataset", r"WebDataset tars \(part-0")),
        (_put_delta, ("delta", r"a Delta table \(_delta_log")),
    ],
)
def test_data_is_found_after_however_many_other_files(
    s3: S3,
    crowded: str,
    tmp_path: Path,
    put: Callable[[str], None],
    expected: tuple[str, str],
) -> None:
    """A dataset is read as what it is, and nothing is written that would hide it."""
    kind, found = expected
    put(crowded)
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    before = sorted(open_store(crowded).list())
    try:
        with open_dataset(crowded) as dataset:
            assert 3 == dataset.sample_count
        assert kind == detect_format(crowded)
        with pytest.raises(DatasetExistsError, match=found):
            convert_files(str(tmp_path / "a.jsonl"), crowded, source_format="json")
        assert before == sorted(open_store(crowded).list())
    finally:
        for name in before:
            if not name.endswith(".crc"):
                open_store(crowded).delete(name)
    assert s3.prefix
