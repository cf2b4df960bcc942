"""Tables of Unity Catalog by their names, against a stand-in for the catalog and a real store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.client import RemoteDataset
from headrace.converter import convert_files
from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    ObjectNotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from headrace.server import DatasetConfig
from headrace.storage import (
    RetryPolicy,
    StoreOptions,
    commit_dataset,
    open_dataset,
    open_store,
    store_index,
)
from headrace.storage.store.databricks.workspace import asked
from support.rescaling import rescaled
from support.running import server_of
from support.s3 import S3
from support.shards import write_shard
from support.unity_catalog import UnityCatalog, unity_catalog

_URL = "uc://main.travel.trips"


@pytest.fixture
def catalog(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[UnityCatalog]:
    """A catalog that gives keys which read the bucket; the environment has none of S3."""
    write_deltalake(s3.url("trips"), _table(0, 50), storage_options=_writing(s3))
    write_deltalake(s3.url("trips"), _table(50, 60), mode="append", storage_options=_writing(s3))
    for part in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
        monkeypatch.delenv(f"AWS_{part}")
    with unity_catalog() as running:
        monkeypatch.setenv("DATABRICKS_HOST", running.address)
        monkeypatch.setenv("DATABRICKS_TOKEN", "thorns-of-databricks")
        monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/dev/null")
        running.keys = _keys(s3.weed.reader_access_key, s3.weed.reader_secret_key)
        running.add("main.travel.trips", s3.url("trips"))
        yield running


def _keys(access: str, secret: str) -> dict[str, Any]:
    return {"aws_temp_credentials": {"access_key_id": access, "secret_access_key": secret}}


def _writing(s3: S3) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": s3.weed.access_key,
        "AWS_SECRET_ACCESS_KEY": s3.weed.secret_key,
        "AWS_ENDPOINT_URL": s3.weed.endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": s3.weed.region,
        "aws_conditional_put": "etag",
    }


def _table(first: int, last: int) -> pa.Table:
    return pa.table({"x": pa.array(range(first, last), pa.int64())})


def _options(s3: S3, **more: Any) -> StoreOptions:
    return StoreOptions(endpoint=s3.weed.endpoint, region=s3.weed.region, **more)


def _numbers(s3: S3, url: str = _URL, fingerprint: str | None = None) -> list[int]:
    with open_dataset(url, options=_options(s3), fingerprint=fingerprint) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return sorted(int(number) for block in blocks for number in block.column("x").to_numpy())


def test_a_table_is_read_by_its_name(catalog: UnityCatalog, s3: S3) -> None:
    """With the keys that the catalog gives; a version has a number and a fingerprint."""
    assert list(range(60)) == _numbers(s3)
    assert list(range(50)) == _numbers(s3, f"{_URL}@0")
    with open_dataset(_URL, options=_options(s3)) as dataset:
        now = dataset.fingerprint
        assert f"{1:016x}" == now[:16]
        assert _URL == dataset.url

    write_deltalake(s3.url("trips"), _table(60, 70), mode="append", storage_options=_writing(s3))
    assert list(range(70)) == _numbers(s3)
    assert list(range(60)) == _numbers(s3, fingerprint=now)
    catalog.tables["main.travel.trips"]["table_id"] = "another"
    with pytest.raises(NotADatasetError, match="another table of this name"):
        _numbers(s3, fingerprint=now)


def test_parquet_tables_are_read_too(catalog: UnityCatalog, s3: S3) -> None:
    """An external table of files without versions."""
    sink = pa.BufferOutputStream()
    pq.write_table(_table(0, 9), sink)
    own = _options(s3, access_key=s3.weed.access_key, secret_key=s3.weed.secret_key)
    with closing(open_store(s3.url("files"), options=own)) as store:
        store.write("a.parquet", sink.getvalue().to_pybytes())
    catalog.add("a.b.c", s3.url("files"), data_source_format="PARQUET", table_type="EXTERNAL")

    assert list(range(9)) == _numbers(s3, "uc://a.b.c")


def test_a_loop_goes_on_in_its_version(catalog: UnityCatalog, s3: S3) -> None:
    """After the table has grown and with another server, which gets keys of its own."""
    served = {"trips": DatasetConfig(url=_URL, store=_options(s3))}

    def loop(address: str) -> RemoteDataset:
        return RemoteDataset(address, "trips", batch_size=7, epochs=1, end="uneven", seed=1)

    with server_of(served) as server:
        with closing(loop(server.address)) as whole:
            expected = [int(number) for batch in whole for number in batch["x"]]
        with closing(loop(server.address)) as first:
            batches = iter(first)
            begun = [int(number) for _ in range(3) for number in next(batches)["x"]]
            state = first.state_dict()
    write_deltalake(s3.url("trips"), _table(60, 70), mode="append", storage_options=_writing(s3))
    with server_of(served) as server, closing(loop(server.address)) as resumed:
        resumed.load_state_dict(state)
        rest = [int(number) for batch in resumed for number in batch["x"]]

    assert expected == begun + rest
    assert "thorns" not in str(state)
    assert catalog.requests


def test_a_catalog_that_is_away_ends_no_read(catalog: UnityCatalog, s3: S3) -> None:
    """The keys serve until they end; those of nobody are refused with the name of who gave them."""
    with open_dataset(_URL, options=_options(s3)) as dataset:
        dataset.read_block(0)
        asked_for = len(catalog.requests)
        catalog.keys = _keys("nobody", "nothing")
        catalog.status = 503
        dataset.read_block(1)
        assert asked_for == len(catalog.requests)
    catalog.status = 200

    with pytest.raises(StoreRefusedError, match=r"nobody \(from Unity Catalog\)"):
        _numbers(s3)


def test_what_was_vacuumed_is_named(catalog: UnityCatalog, s3: S3) -> None:
    """With the retention that a run needs, at the opening and in mid-run."""
    del catalog
    with open_dataset(_URL, options=_options(s3)) as dataset:
        old = dataset.fingerprint
        table = DeltaTable(s3.url("trips"), storage_options=_writing(s3))
        table.delete()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(ObjectNotFoundError, match=r"vacuumed meanwhile.*deletedFileRetention"):
            dataset.read_block(0)

    with pytest.raises(ObjectNotFoundError, match=r"vacuumed.*deletedFileRetentionDuration"):
        _numbers(s3, fingerprint=old)


def test_a_volume_is_read_from_a_machine_that_does_not_mount_it(
    catalog: UnityCatalog, s3: S3
) -> None:
    """Where the catalog says that it lies, and with its keys, which all its stores share."""
    own = _options(s3, access_key=s3.weed.access_key, secret_key=s3.weed.secret_key)
    with closing(open_store(s3.url("volume/d"), options=own)) as store:
        commit_dataset(store, _table(0, 9).schema, [write_shard(store, "a", [_batch(9)])])
    place = {"volume_id": f"v-{s3.prefix}", "storage_location": s3.url("volume")}
    name = f"v{s3.prefix[-9:]}"
    catalog.volumes[f"main.travel.{name}"] = place
    url = f"dbfs:/Volumes/main/travel/{name}/d"

    assert list(range(9)) == _numbers(s3, url) == _numbers(s3, url)
    assert 1 == sum("temporary-volume" in path for path in catalog.requests)
    with (
        closing(open_store(url, options=_options(s3))) as store,
        pytest.raises(StoreRefusedError, match=r"no credentials.*WRITE_VOLUME"),
    ):
        store.write("x", b"y")


def test_a_volume_is_written_and_trained_on_from_elsewhere(
    catalog: UnityCatalog, s3: S3, tmp_path: Path
) -> None:
    """Files become a dataset in it; keys that write are asked for by writers alone."""
    catalog.writing_keys = _keys(s3.weed.access_key, s3.weed.secret_key)
    name = f"w{s3.prefix[-9:]}"
    catalog.volumes[f"main.travel.{name}"] = {
        "volume_id": f"w-{s3.prefix}",
        "storage_location": s3.url("writable"),
    }
    (tmp_path / "numbers.csv").write_text("x\n" + "\n".join(map(str, range(40))))
    url = f"dbfs:/Volumes/main/travel/{name}/d"
    convert_files(str(tmp_path / "numbers.csv"), url, source_format="csv", options=_options(s3))
    before = len(catalog.requests)
    convert_files(
        str(tmp_path / "numbers.csv"), url, source_format="csv", options=_options(s3), mode="append"
    )
    assert before == len(catalog.requests)  # the keys serve

    seen = rescaled(DatasetConfig(url=url, store=_options(s3)))
    assert sorted([*range(40), *range(40)]) == sorted(seen)
    with closing(open_store(url, options=_options(s3))) as store, closing(store.below("a")) as a:
        a.write("b/c", b"1")
        assert b"1" == store.read("a/b/c") == a.read("b/c")
        assert ["a/b/c"] == [one.name for one in store.list_entries("a/")]


def _batch(count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": pa.array(range(count), pa.int64())})


def test_an_index_opens_the_same_table(catalog: UnityCatalog, s3: S3, tmp_path: Any) -> None:
    """Its fingerprint is that of the table."""
    del catalog
    pytest.MonkeyPatch().setenv("AWS_ENDPOINT_URL", s3.weed.endpoint)
    pointer = store_index(_URL, str(tmp_path))
    with open_dataset(f"{tmp_path} from {_URL}", options=_options(s3)) as dataset:
        assert pointer.fingerprint == dataset.fingerprint
        assert 60 == dataset.sample_count


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ("is a view", {"table_type": "VIEW", "storage_location": None}),
        ("has the format CSV", {"data_source_format": "CSV"}),
        ("has the format ICEBERG.*iceberg://", {"data_source_format": "ICEBERG"}),
        ("filter of rows", {"row_filter": {"function_name": "f", "input_column_names": ["x"]}}),
        ("masks of columns", {"columns": [{"name": "x", "mask": {"function_name": "f"}}]}),
    ],
)
def test_what_is_not_read_is_refused_by_name(
    catalog: UnityCatalog, s3: S3, said: str, more: dict[str, Any]
) -> None:
    """What to do is said; rows and values that a caller may not see are never served."""
    catalog.add("a.b.c", s3.url("trips"), **more)

    with pytest.raises(HeadraceError, match=f"uc://a.b.c {said}|uc://a.b.c has a {said}|{said}"):
        _numbers(s3, "uc://a.b.c")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "gave no credentials"),
        ({"azure_user_delegation_sas": {"sas_token": "thorns"}}, "gave azure_user_delegation_sas"),
        ({"gcp_oauth_token": {"oauth_token": "thorns"}}, "gave gcp_oauth_token"),
    ],
)
def test_keys_that_are_no_use_are_named(
    catalog: UnityCatalog, s3: S3, keys: dict[str, Any], said: str
) -> None:
    """Without the keys themselves."""
    catalog.keys = keys

    with pytest.raises(StoreRefusedError, match=said) as error:
        _numbers(s3)
    assert "thorns" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, StoreRefusedError, "refuses uc://main.travel.trips"),
        (403, StoreRefusedError, "EXTERNAL USE SCHEMA"),
        (404, NotADatasetError, "has no uc://main.travel.trips"),
        (500, StoreUnavailableError, "cannot be asked about uc://main.travel.trips"),
    ],
)
def test_answers_of_the_catalog_are_told_apart(
    catalog: UnityCatalog, s3: S3, status: int, kind: type[HeadraceError], said: str
) -> None:
    """What may pass is retried, what will not is refused."""
    catalog.status = status

    options = replace(_options(s3), retry=RetryPolicy(attempts=1))
    with pytest.raises(kind, match=said) as error:
        open_dataset(_URL, options=options)
    assert "thorns" not in f"{error.value} {error.value.metadata}"


def test_a_missing_identity_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked for, and where it must be set."""
    for name in ("HOST", "TOKEN", "CONFIG_PROFILE"):
        monkeypatch.delenv(f"DATABRICKS_{name}", raising=False)
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", "/dev/null")

    with pytest.raises(ConfigurationError, match=r"DATABRICKS_HOST with DATABRICKS_TOKEN.*worker"):
        open_dataset(_URL)


def test_a_silent_workspace_does_not_hang(catalog: UnityCatalog) -> None:
    """The deadline is ours."""
    del catalog
    with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.2 s"):
        asked(lambda _: threading.Event().wait(5), about=_URL, deadline_s=0.2)


@pytest.mark.parametrize("url", ["uc://a.b", "uc://a.b.c@x", "uc://a.b.c/d", "uc://a..c"])
def test_other_names_are_refused(url: str) -> None:
    """Before anybody is asked."""
    with pytest.raises(BadArgumentError, match="names no table"):
        open_dataset(url)
