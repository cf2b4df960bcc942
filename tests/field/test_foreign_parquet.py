"""What a folder of Parquet files says beside its values is honoured, or refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from headrace.cli.group import run
from headrace.converter import convert_files
from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    ManifestCorruptError,
    ObjectNotFoundError,
    UnsupportedColumnError,
)
from headrace.server import DatasetConfig
from headrace.storage import SourceOptions, open_dataset, store_index
from storage.parquet.delta_log import add, field, struct_type, write_log
from support.running import server_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LEGACY = {
    "org.apache.spark.version": "4.3.0",
    "org.apache.spark.legacyDateTime": "",
    "org.apache.spark.legacyINT96": "",
}
_DAYS = [-208120, -141428, -141427, -25568, 19782]  # as the hybrid calendar counts them
_MEANT = ["1400-03-01", "1582-10-04", "1582-10-15", "1899-12-31", "2024-02-29"]


def _ids(url: str | Path, **options: Any) -> list[Any]:
    with open_dataset(str(url), source_options=SourceOptions(**options)) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return [value for block in blocks for value in block.column("id").to_pylist()]


def _write(path: Path, ids: list[int], **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": ids, **columns}), path)


def _legacy(folder: Path, columns: Mapping[str, pa.Array[Any]], zone: str | None = "UTC") -> str:
    notes = _LEGACY if zone is None else {**_LEGACY, "org.apache.spark.timeZone": zone}
    return _noted(folder, pa.table(dict(columns)), notes)


def _noted(folder: Path, table: pa.Table, notes: Mapping[str, str], *, int96: bool = False) -> str:
    """Write a file with notes in its footer, and without the Arrow schema that Spark never has."""
    folder.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(
        folder / "a.parquet",
        table.schema,
        store_schema=False,
        use_deprecated_int96_timestamps=int96,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(notes))
    return str(folder)


def _column(url: str, name: str) -> list[Any]:
    with open_dataset(url) as dataset:
        whole = dataset.read_block(0).column(name)
        some: Any = dataset.read_columns(0, (name,))  # type: ignore[attr-defined] # of Parquet
        assert whole.equals(some.column(name))
    return whole.to_pylist()


def test_old_dates_of_spark_are_those_that_it_wrote(tmp_path: Path) -> None:
    """With nulls, in a folder, through a stored index, and converted."""
    days = pa.array([*_DAYS, None], pa.int32()).cast(pa.date32())
    url = _legacy(tmp_path / "d", {"id": pa.array(range(6)), "d": days}, zone="Europe/Berlin")
    meant = [*map(date.fromisoformat, _MEANT), None]
    store_index(url, str(tmp_path / "index"))
    convert_files(url, str(tmp_path / "own"), source_format="parquet")

    by_index = f"{tmp_path / 'index'} from {url}"
    assert meant == _column(url, "d") == _column(by_index, "d")
    with open_dataset(str(tmp_path / "own")) as dataset:
        assert meant == dataset.read_block(0).column("d").to_pylist()


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", None])
@pytest.mark.parametrize("int96", [False, True])
def test_old_timestamps_are_right_or_refused(tmp_path: Path, zone: str | None, int96: bool) -> None:  # noqa: FBT001 - a case
    """Zones have had rules of their own in Java: only UTC is converted, and later ones need not."""
    micros = [day * 86_400_000_000 + 12_345_678 for day in _DAYS]
    times = pa.array([*micros, None], pa.timestamp("us", "UTC"))
    notes = {**_LEGACY, **({} if zone is None else {"org.apache.spark.timeZone": zone})}
    table = pa.table({"t": times})
    for name, rows in (("old", table), ("new", table.slice(4))):
        _noted(tmp_path / name, rows, notes, int96=int96)
    latest = datetime.fromisoformat("2024-02-29T00:00:12.345678")

    found = _column(str(tmp_path / "new"), "t")
    assert [latest, None] == [value and value.replace(tzinfo=None) for value in found]
    if zone == "UTC":
        old = _column(str(tmp_path / "old"), "t")
        assert _MEANT == [value.date().isoformat() for value in old[:-1]]
        assert {12} == {value.second for value in old[:-1]}
    else:
        zone_shown = zone or r"\(not stated\)"
        with pytest.raises(
            UnsupportedColumnError, match=f"'t'.*before 1900.*{zone_shown}.*CORRECTED"
        ):
            _column(str(tmp_path / "old"), "t")


def test_old_dates_inside_of_lists_are_refused_by_name(tmp_path: Path) -> None:
    """And read where none is old; timestamps without a zone are in no calendar."""
    old = pa.array([[-208120, None]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    new = pa.array([[19782, None]], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))
    local = pa.array([-208120 * 86_400_000_000], pa.timestamp("us"))

    with pytest.raises(UnsupportedColumnError, match=r"'l'.*before 1582-10-15 inside of lists"):
        _column(_legacy(tmp_path / "old", {"l": old}), "l")
    assert [[date(2024, 2, 29), None]] == _column(_legacy(tmp_path / "new", {"l": new}), "l")
    assert local.to_pylist() == _column(_legacy(tmp_path / "local", {"t": local}), "t")


@pytest.mark.parametrize(
    ("notes", "is_legacy"),
    [
        ({"org.apache.spark.version": "2.4.8"}, True),
        ({"org.apache.spark.version": "3.0.0"}, False),
        ({"org.apache.spark.version": "10.1.0"}, False),
        ({"org.apache.spark.legacyDateTime": ""}, False),  # no version: as Spark reads it
        ({}, False),
    ],
)
def test_the_writer_tells_the_calendar(
    tmp_path: Path, notes: Mapping[str, str], *, is_legacy: bool
) -> None:
    """By the rules of Spark: its version, and the key if it was asked for the old calendar."""
    days = pa.array([_DAYS[0]], pa.int32()).cast(pa.date32())
    _noted(tmp_path, pa.table({"d": days}), notes)

    assert [date(1400, 3, 1 if is_legacy else 10)] == _column(str(tmp_path), "d")


def test_old_dates_of_hive_are_refused(tmp_path: Path) -> None:
    """Its own readers convert them and Spark does not."""
    days = pa.array([_DAYS[0]], pa.int32()).cast(pa.date32())
    _noted(tmp_path, pa.table({"d": days}), {"writer.date.proleptic": "false"})

    with pytest.raises(UnsupportedColumnError, match="Hive's"):
        _column(str(tmp_path), "d")


@pytest.mark.timeout(400)
def test_what_spark_writes_reads_as_spark_reads_it(spark: SparkSession, tmp_path: Path) -> None:
    """Its legacy calendar, and a sink beside a file that a failed batch left behind."""
    names = (
        "session.timeZone",
        "parquet.datetimeRebaseModeInWrite",
        "parquet.int96RebaseModeInWrite",
    )
    before = {name: spark.conf.get(f"spark.sql.{name}") for name in names}
    old, sink = str(tmp_path / "old"), str(tmp_path / "sink")
    try:
        for name, value in zip(names, ("UTC", "LEGACY", "LEGACY"), strict=True):
            spark.conf.set(f"spark.sql.{name}", value)
        texts = ["0001-01-03", "1000-12-31", "1400-03-01", "1582-10-04", "1582-10-15", "2024-02-29"]
        rows = spark.createDataFrame([(text,) for text in texts], "x string").coalesce(1)
        rows.selectExpr("date(x) d", "timestamp(concat(x, ' 01:02:03.000004')) t").write.parquet(
            old
        )
        read = spark.read.parquet(old).selectExpr("unix_date(d)", "unix_micros(t)").collect()
    finally:
        for name, text in before.items():
            spark.conf.set(f"spark.sql.{name}", str(text))
    spark.range(3).coalesce(1).write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
    log = {"checkpointLocation": str(tmp_path / "log"), "path": sink}
    stream.writeStream.format("parquet").options(**log).trigger(
        availableNow=True
    ).start().awaitTermination(120)
    [written] = Path(sink).glob("*.parquet")
    (Path(sink) / f"part-00001-{written.name[11:]}").write_bytes(written.read_bytes())

    with open_dataset(old) as dataset:
        block = dataset.read_block(0)
    assert [row[0] for row in read] == block["d"].view(pa.int32()).to_pylist()
    assert [row[1] for row in read] == block["t"].view(pa.int64()).to_pylist()
    assert sorted(row[0] for row in spark.read.parquet(sink).collect()) == _ids(sink) == [0, 1, 2]


def _sink(folder: Path, batches: Mapping[str, list[tuple[str, str]]]) -> None:
    for name, actions in batches.items():
        lines = ["v1"]
        for action, file in actions:
            size = (folder / file).stat().st_size
            facts = {"path": f"s3a://gone/away/{file}", "size": size, "action": action}
            lines.append(json.dumps({**facts, "isDir": False}))
        log = folder / "_spark_metadata" / name
        log.parent.mkdir(exist_ok=True)
        log.write_text("\n".join(lines))


def _three_files(folder: Path) -> None:
    for name in "abc":
        _write(folder / f"p=1/{name}.parquet", [ord(name) - ord("a")])


def test_a_sink_has_the_files_of_its_batches(tmp_path: Path) -> None:
    """In their order, after the last compaction, without deleted ones; also after a move."""
    _three_files(tmp_path)
    _sink(tmp_path, {"0": [("add", "p=1/c.parquet")], "1": [("add", "p=1/a.parquet")]})
    assert [2, 0] == _ids(tmp_path)
    store_index(str(tmp_path), str(tmp_path.parent / "index"))
    assert [2, 0] == _ids(f"{tmp_path.parent / 'index'} from {tmp_path}")

    both = [("add", "p=1/c.parquet"), ("add", "p=1/a.parquet")]
    more = [("add", "p=1/b.parquet"), ("delete", "p=1/c.parquet")]
    _sink(tmp_path, {"9.compact": both, "10": more})
    assert [0, 1] == _ids(tmp_path)


def test_a_sink_that_lacks_something_is_refused(tmp_path: Path) -> None:
    """A batch, a file, its size, or lines that can be read: each is named."""
    _three_files(tmp_path)
    _sink(tmp_path, {"0": [("add", "p=1/c.parquet")], "2": [("add", "p=1/a.parquet")]})
    with pytest.raises(ManifestCorruptError, match="no log of batch 1"):
        open_dataset(str(tmp_path))
    _sink(tmp_path, {"1": [("add", "p=1/b.parquet")]})
    (tmp_path / "p=1/b.parquet").rename(tmp_path / "p=1/d.parquet")
    with pytest.raises(ObjectNotFoundError, match=r"p=1/b\.parquet of the streaming sink"):
        open_dataset(str(tmp_path))
    (tmp_path / "_spark_metadata/1").write_text("v2\n{}")
    with pytest.raises(ManifestCorruptError, match="_spark_metadata/1 cannot be read: 'v2'"):
        open_dataset(str(tmp_path))


def _notes(folder: Path, **files: Any) -> None:
    for name, value in files.items():
        (folder / name).write_text("" if value is None else json.dumps(value))


def test_files_of_transactions_that_did_not_commit_are_left_out(tmp_path: Path) -> None:
    """Databricks' protocol: started alone, committed, and removed by a later transaction."""
    first, second, third = (f"part-0-tid-{tid}-a.parquet" for tid in (11, 12, 13))
    for at, name in enumerate((first, second, third, "plain.parquet")):
        _write(tmp_path / name, [at])
    _notes(tmp_path, _started_11=None, _committed_11={"added": [first], "removed": []})
    _notes(tmp_path, _started_12=None)
    assert [0, 2, 3] == _ids(tmp_path)

    _notes(tmp_path, _committed_12={"added": [second], "removed": [first]})
    assert [1, 2, 3] == _ids(tmp_path)
    (tmp_path / first).unlink()
    assert [1, 2, 3] == _ids(tmp_path)
    (tmp_path / second).unlink()
    with pytest.raises(ObjectNotFoundError, match=r"tid-12.*committed, is missing"):
        open_dataset(str(tmp_path))
    _notes(tmp_path, _committed_12={"added": 5})
    with pytest.raises(ManifestCorruptError, match="_committed_12 cannot be read"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("000001_0", "table of Hive"),
        ("000001_0_copy_2", "table of Hive"),
        ("x=1/bucket_00003", "table of Hive"),
        ("delta_0000002_0000002_0000/b.parquet", "transactional table of Hive"),
        ("base_0000007/000000_0", "transactional table of Hive"),
        ("inner/_delta_log/00000000000000000000.json", "Delta table"),
        ("inner/_spark_metadata/0", "streaming sink"),
    ],
)
def test_folders_with_files_that_names_do_not_tell_are_refused(
    tmp_path: Path, name: str, found: str
) -> None:
    """Some of their rows would be missing, or rows that were deleted would be there."""
    for each in ("a.parquet", name):
        _write(tmp_path / each, [1])

    with pytest.raises(ConfigurationError, match=f"{name}, so it is or contains a.* {found}"):
        open_dataset(str(tmp_path))


@pytest.mark.parametrize("inner", ["x=1", "x=1/y=2", "x=1/y=2/a.parquet", "sub", "sub/data"])
@pytest.mark.parametrize("log", ["_delta_log/0.json", "_spark_metadata/0", ".hoodie/h.properties"])
def test_a_part_of_a_table_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inner: str, log: str
) -> None:
    """Its folder lies below the log; each command names the table."""
    _write(tmp_path / (inner if inner.endswith(".parquet") else f"{inner}/a.parquet"), [1])
    (tmp_path / log).parent.mkdir()
    (tmp_path / log).write_text("{}")
    url = str(tmp_path / inner)

    with pytest.raises(ConfigurationError, match=f"is inside of .*{tmp_path}: only the log there"):
        open_dataset(url)
    assert 0 != run(["inspect", url])
    assert f"Open {tmp_path}" in capsys.readouterr().err


def test_the_data_folder_of_an_iceberg_table_is_refused(tmp_path: Path) -> None:
    """But not a folder that merely has a neighbour called metadata."""
    for folder in ("data", "other"):
        _write(tmp_path / folder / "x=1/a.parquet", [1])
    _write(tmp_path / "metadata/v1.metadata.json", [1])

    with pytest.raises(ConfigurationError, match="inside of an Iceberg table"):
        open_dataset(str(tmp_path / "data/x=1"))
    assert [1] == _ids(tmp_path / "other")


@pytest.mark.parametrize("feature", ["variantType", "variantType-preview"])
def test_a_feature_that_no_column_uses_is_none(tmp_path: Path, feature: str) -> None:
    """delta-rs lists that of variants beside deletion vectors; a column of variants is refused."""
    for name, kind in (("plain", "long"), ("variants", "variant")):
        _write(tmp_path / name / "a.parquet", [1, 2, 3])
        inner = {"type": "array", "elementType": kind, "containsNull": True}
        columns = [field("id", "long"), *([field("v", inner)] if kind == "variant" else [])]
        files = [add(tmp_path / name, "a.parquet", deleted=[1])]
        write_log(
            tmp_path / name, struct_type(columns), files, features=["deletionVectors", feature]
        )

    assert [1, 3] == _ids(tmp_path / "plain")
    with pytest.raises(HeadraceError, match="variant"):
        open_dataset(str(tmp_path / "variants"))


@pytest.mark.parametrize("feature", ["catalogManaged", "catalogOwned-preview"])
def test_tables_of_a_catalog_are_refused(tmp_path: Path, feature: str) -> None:
    """Their latest commits are in the catalog alone, and the log would give an older state."""
    _write(tmp_path / "a.parquet", [1])
    schema = struct_type([field("id", "long")])
    write_log(tmp_path, schema, [add(tmp_path, "a.parquet")], features=[feature])

    with pytest.raises(ConfigurationError, match=r"catalog-managed .*write_shards"):
        open_dataset(str(tmp_path))


def test_columns_added_later_are_null_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As Spark merges schemas; through an index and `convert`, too. Otherwise it says how."""
    data, index, own = tmp_path / "data", tmp_path / "index", tmp_path / "own"
    _write(data / "a.parquet", [1, 2], gone=["x", "y"])
    _write(data / "b.parquet", [3], new=np.array([0.5]))
    with pytest.raises(UnsupportedColumnError, match=r"SourceOptions\(missing_as_null=True\)"):
        open_dataset(str(data))
    assert 2 == run(["inspect", str(data)])
    said = capsys.readouterr().err
    assert "where it is missing, with --missing-as-null, `source:" in said
    assert "missing_as_null=" not in said
    expected = {"id": [1, 2, 3], "gone": ["x", "y", None], "new": [None, None, 0.5]}

    with open_dataset(str(data), source_options=SourceOptions(missing_as_null=True)) as dataset:
        blocks = [dataset.read_block(block) for block in range(2)]
        assert expected == pa.Table.from_batches(blocks).to_pydict()
        assert [False, True, True] == [each.nullable for each in dataset.schema]
        assert dataset.read_columns(1, ("gone",)).to_pydict() == {"gone": [None]}  # type: ignore[attr-defined] # of Parquet
    for command in ("inspect", "cat", "verify", "shuffle"):
        assert 0 == run([command, str(data), "--missing-as-null"])
    assert 0 == run(["order", str(data), "--global-batch-size=1", "--missing-as-null"])
    assert 0 == run(["index", str(data), "--to", str(index), "--missing-as-null"])
    assert 0 == run(["convert", str(data), str(own), "--missing-as-null"])
    for url in (f"{index} from {data}", own):
        with open_dataset(str(url)) as dataset:
            blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
            assert expected == pa.Table.from_batches(blocks).to_pydict()


def test_a_load_test_compares_columns_added_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a server reads as null on request, a load test reads so too, or says how."""
    _write(tmp_path / "a.parquet", [1, 2, 3, 4])
    _write(tmp_path / "b.parquet", [5, 6, 7, 8], new=np.arange(4.0))
    source = SourceOptions(missing_as_null=True)
    served = DatasetConfig(url=str(tmp_path), source=source)
    with server_of({"d": served}) as server:
        test = ["loadtest", server.address, "d", "--ranks=2", "--batch-size=2"]
        test.append(f"--manifest={tmp_path}")

        assert 2 == run(test)
        assert "with --missing-as-null" in capsys.readouterr().err
        assert 0 == run([*test, "--missing-as-null"])
    assert "0 of them wrong" in capsys.readouterr().out


def test_columns_of_two_types_stay_refused(tmp_path: Path) -> None:
    """Null is for what is missing, and for nothing else."""
    _write(tmp_path / "a.parquet", [1], x=["text"])
    _write(tmp_path / "b.parquet", [1], x=[1.5])

    with pytest.raises(UnsupportedColumnError, match="write it with one type"):
        _ids(tmp_path, missing_as_null=True)


def test_a_delta_table_is_no_part_of_itself(tmp_path: Path) -> None:
    """A table in a folder beside others is opened by its own log."""
    for name in ("a", "b"):
        write_deltalake(tmp_path / name, pa.table({"id": [1, 2]}))

    assert [1, 2] == _ids(tmp_path / "a")
