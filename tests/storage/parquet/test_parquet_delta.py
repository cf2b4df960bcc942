"""Delta tables: the rows that a version has, and no others."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.errors import (
    BadArgumentError,
    ConfigurationError,
    HeadraceError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
    ShardCorruptError,
    UnsupportedColumnError,
)
from headrace.storage import SourceOptions, open_dataset, open_store, store_index
from headrace.storage.parquet import ParquetDataset, decode_index, encode_index, open_parquet
from storage.parquet.delta_log import add, deletion_vector, field, struct_type, write_log
from storage.parquet.parquet_cases import all_samples, table_of, write_file
from support.s3 import S3


def _numbers(url: str | Path, *, version: int | None = None) -> list[int]:
    with open_parquet(str(url), table_version=version) as dataset:
        numbers = all_samples(dataset).column("number").to_pylist()
    return sorted(number for number in numbers if isinstance(number, int))


def test_current_version_is_the_default(tmp_path: Path) -> None:
    """Removed files are not read, and the oldest samples come first."""
    write_deltalake(tmp_path, table_of(range(10)))
    write_deltalake(tmp_path, table_of(range(10, 20)), mode="overwrite")
    write_deltalake(tmp_path, table_of(range(20, 25)), mode="append")

    with open_parquet(str(tmp_path)) as dataset:
        assert list(range(10, 25)) == all_samples(dataset).column("number").to_pylist()
        assert 2 == dataset.index.table_version


def test_metadata_of_other_formats_beside_the_log_changes_nothing(tmp_path: Path) -> None:
    """A Delta table that Iceberg's and Hudi's readers read too is served by its own log."""
    write_deltalake(tmp_path, table_of(range(10)))
    write_deltalake(tmp_path, table_of(range(10, 20)), mode="overwrite")
    for name in ("metadata/00001-6c3a.metadata.json", ".hoodie/hoodie.properties"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"{}")

    assert list(range(10, 20)) == _numbers(tmp_path)


def test_named_versions_stay_readable(tmp_path: Path) -> None:
    """Each version has its own samples and fingerprint; one that is not there is refused."""
    write_deltalake(tmp_path, table_of(range(10)))
    write_deltalake(tmp_path, table_of(range(10, 20)), mode="append")

    assert list(range(10)) == _numbers(tmp_path, version=0)
    assert list(range(20)) == _numbers(tmp_path, version=1)
    with pytest.raises(NotADatasetError, match="no version 7; its current version is 1"):
        open_parquet(str(tmp_path), table_version=7)
    with (
        open_dataset(str(tmp_path), source_options=SourceOptions(table_version=0)) as old,
        open_dataset(str(tmp_path)) as new,
    ):
        assert old.fingerprint != new.fingerprint


def test_bytes_of_partitions_are_those_that_were_written(tmp_path: Path) -> None:
    """The log escapes them, as text; text that only looks similar is as it was."""
    written = {"number": [1, 2, 3, 4], "key": [b"ab", None, b"\x00\xff", b"\\u00"]}
    write_deltalake(tmp_path, pa.table(written), partition_by=["key"])

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).sort_by("number").to_pydict()

    assert written == found


def test_partition_columns_come_from_the_log(tmp_path: Path) -> None:
    """Partition columns are typed, have nulls, and stand where the table has them."""
    table = pa.table({"part": ["a b/c", None, "x"], "day": [1, 2, 3], "number": [1, 2, 3]})
    table = table.set_column(1, "day", table.column("day").cast(pa.int32()).cast(pa.date32()))
    write_deltalake(tmp_path, table, partition_by=["part", "day"])

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset)

    assert table.schema.names == found.schema.names
    assert table.schema.types == found.schema.types
    assert table.to_pylist() == found.sort_by("number").to_pylist()


def test_columns_added_later_are_null_before(tmp_path: Path) -> None:
    """A file from before a column was added has nulls in it."""
    write_deltalake(tmp_path, pa.table({"number": [1]}))
    both = pa.table({"number": [2], "new": ["x"]})
    write_deltalake(tmp_path, both, mode="append", schema_mode="merge")

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).sort_by("number").to_pylist()

    assert [{"number": 1, "new": None}, {"number": 2, "new": "x"}] == found


def test_table_reads_as_delta_rs_reads_it(tmp_path: Path) -> None:
    """After deletes and updates the samples are the rows that delta-rs has."""
    write_deltalake(tmp_path, table_of(range(50)))
    DeltaTable(tmp_path).delete("number % 5 = 0")
    DeltaTable(tmp_path).update({"text": "'new'"}, predicate="number < 10")
    wanted = pa.table(DeltaTable(tmp_path).to_pyarrow_table()).sort_by("number")

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).sort_by("number")

    assert wanted.to_pylist() == found.to_pylist()


def test_column_mapping_is_applied(tmp_path: Path) -> None:
    """Columns, fields of structs and partitions have the table's names, not those of the files."""
    pair = pa.array([{"f-1": 1, "f-2": "a"}, None, {"f-1": 3, "f-2": None}])
    write_file(
        tmp_path / "1.parquet", pa.table({"c-1": [1, 2, 3], "c-2": pair, "dropped": [0] * 3})
    )
    inner = [field("n", "long", physical="f-1"), field("s", "string", physical="f-2")]
    schema = struct_type(
        [
            field("number", "long", physical="c-1"),
            field("pair", struct_type(inner), physical="c-2"),
            field("part", "integer", physical="c-3"),
        ]
    )
    actions = [add(tmp_path, "1.parquet", partition={"c-3": "7"})]
    mode = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": str(2**31 - 1)}
    write_log(
        tmp_path,
        schema,
        actions,
        partition_columns=["part"],
        features=["columnMapping"],
        configuration=mode,
    )

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).to_pylist()

    assert [
        {"number": 1, "pair": {"n": 1, "s": "a"}, "part": 7},
        {"number": 2, "pair": None, "part": 7},
        {"number": 3, "pair": {"n": 3, "s": None}, "part": 7},
    ] == found


def test_columns_mapped_by_id_may_have_any_names_in_files(tmp_path: Path) -> None:
    """Also fields of structs; a name that another column has in the file misleads nobody."""
    number = field("number", "long", physical="c-1")
    inner = field("n", "long", physical="f-1")
    pair = field("pair", struct_type([inner]), physical="c-2")
    ids = [_id_of(one) for one in (number, inner, pair)]
    kinds = pa.schema(
        [
            pa.field("pair", pa.int64(), metadata={"PARQUET:field_id": ids[0]}),
            pa.field(
                "number",
                pa.struct([pa.field("x", pa.int64(), metadata={"PARQUET:field_id": ids[1]})]),
                metadata={"PARQUET:field_id": ids[2]},
            ),
            pa.field("c-1", pa.int64(), metadata={"PARQUET:field_id": "7"}),
        ]
    )
    rows: list[dict[str, object]] = [
        {"pair": 1, "number": {"x": 2}, "c-1": 0},
        {"pair": 3, "number": None, "c-1": 0},
    ]
    write_file(tmp_path / "1.parquet", pa.Table.from_pylist(rows, schema=kinds))
    mode = {"delta.columnMapping.mode": "id", "delta.columnMapping.maxColumnId": str(2**31 - 1)}
    actions = [add(tmp_path, "1.parquet", deleted=[])]
    schema = struct_type([number, pair])
    write_log(tmp_path, schema, actions, features=["columnMapping"], configuration=mode)

    with open_parquet(str(tmp_path)) as dataset:
        found = all_samples(dataset).to_pylist()
        stored = decode_index(encode_index(dataset.index), place="here")
    with open_parquet(str(tmp_path), index=stored) as indexed:
        assert found == all_samples(indexed).to_pylist()
        assert [{"number": 1}, {"number": 3}] == indexed.read_columns(0, ("number",)).to_pylist()

    assert [{"number": 1, "pair": {"n": 2}}, {"number": 3, "pair": None}] == found


def test_exchanged_names_are_another_dataset(tmp_path: Path) -> None:
    """The same files under the same names, and yet other samples: a token does not fit."""
    fingerprints = []
    for place, physical in enumerate((("c-1", "c-2"), ("c-2", "c-1"))):
        table = tmp_path / str(place)
        write_file(table / "1.parquet", pa.table({"c-1": [1], "c-2": [2]}))
        columns = [field(n, "long", physical=p) for n, p in zip("ab", physical, strict=True)]
        mode = {"delta.columnMapping.mode": "name"}
        limits = {"delta.columnMapping.maxColumnId": str(2**31 - 1)}
        actions = [add(table, "1.parquet")]
        write_log(
            table,
            struct_type(columns),
            actions,
            features=["columnMapping"],
            configuration=mode | limits,
        )
        with open_parquet(str(table)) as dataset:
            fingerprints.append(dataset.fingerprint)

    assert fingerprints[0] != fingerprints[1]


def _id_of(column: Mapping[str, object]) -> str:
    metadata = column["metadata"]
    assert isinstance(metadata, dict)
    return str(metadata["delta.columnMapping.id"])


_NUMBERS = struct_type([field("number", "long"), field("text", "string")])


def _with_deleted_rows(table: Path) -> list[int]:
    """Write a table of two files of three row groups, and return the samples that are left."""
    write_file(table / "a b.parquet", table_of(range(40)), row_group_size=10)
    write_file(table / "b.parquet", table_of(range(40, 60)), row_group_size=10)
    gone = [3, 4, 19, *range(20, 30)]
    actions = [
        add(table, "a%20b.parquet".replace("%20", " "), deleted=gone),
        add(table, "b.parquet"),
    ]
    actions[0]["add"]["path"] = "a%20b.parquet"  # type: ignore[index] # an action of an add
    write_log(table, _NUMBERS, actions, features=["deletionVectors"])
    return [number for number in range(60) if number not in gone]


def test_deleted_rows_are_no_samples(tmp_path: Path) -> None:
    """Rows of a deletion vector are left out; a row group with none left is no block."""
    left = _with_deleted_rows(tmp_path)

    with open_parquet(str(tmp_path)) as dataset:
        assert left == all_samples(dataset).column("number").to_pylist()
        assert [27, 20] == dataset.shard_sample_counts.tolist()
        assert 5 == dataset.block_count
        ids, places = dataset.locate(dataset.shard_sample_counts[:1])
        assert 40 == dataset.read_block(int(ids[0])).column("number")[int(places[0])].as_py()


def test_index_keeps_deleted_rows(tmp_path: Path) -> None:
    """A stored index of a Delta table needs no log to open, and leaves out the same rows."""
    left = _with_deleted_rows(tmp_path)
    with open_parquet(str(tmp_path)) as dataset:
        index = decode_index(encode_index(dataset.index), place="here")
    for log in (tmp_path / "_delta_log").iterdir():
        log.unlink()

    with open_parquet(str(tmp_path), index=index) as dataset:
        assert left == all_samples(dataset).column("number").to_pylist()


def test_deleted_row_past_the_end_is_refused(tmp_path: Path) -> None:
    """A deletion vector for rows that a file does not have is damage."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    actions = [add(tmp_path, "1.parquet", deleted=[2, 10], stated_rows=20)]
    write_log(tmp_path, _NUMBERS, actions, features=["deletionVectors"])

    with pytest.raises(ShardCorruptError, match=r"row 10 is deleted, but the file has 10"):
        open_parquet(str(tmp_path))


def test_damaged_deletion_vector_is_refused(tmp_path: Path) -> None:
    """A vector that cannot be decoded ends the opening, with the table named."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    action = add(tmp_path, "1.parquet", deleted=[2])
    action["add"]["deletionVector"]["pathOrInlineDv"] = "0" * 40  # type: ignore[index] # see add
    write_log(tmp_path, _NUMBERS, [action], features=["deletionVectors"])

    with pytest.raises(ManifestCorruptError, match="log of the Delta table"):
        open_parquet(str(tmp_path))


def test_clone_is_refused(tmp_path: Path) -> None:
    """A table that refers to files of another one is refused."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    action = add(tmp_path, "1.parquet")
    action["add"]["path"] = "s3://elsewhere/1.parquet"  # type: ignore[index] # see add
    write_log(tmp_path, _NUMBERS, [action])

    with pytest.raises(ConfigurationError, match="shallow clone"):
        open_parquet(str(tmp_path))


def test_files_below_a_prefix_of_the_operator_are_read(tmp_path: Path) -> None:
    """A clone's, whose deleted rows lie there too; by a stored index, unless they change."""
    table, other = tmp_path / "clone", tmp_path / "the original"
    for folder in (table, other):
        folder.mkdir()
        write_file(folder / "1.parquet", table_of(range(10)))
    action = add(other, "1.parquet", deleted=[2])
    stated: dict[str, Any] = action["add"]  # type: ignore[assignment] # see add
    stated["path"] = f"file://{quote(str(other))}/1.parquet"
    vector = stated["deletionVector"]
    content = deletion_vector([2])
    frame = len(content).to_bytes(4, "big") + content + zlib.crc32(content).to_bytes(4, "big")
    (other / "vector.bin").write_bytes(frame)
    vector |= {"storageType": "p", "pathOrInlineDv": f"file://{quote(str(other))}/vector.bin"}
    write_log(table, _NUMBERS, [action, add(table, "1.parquet")], features=["deletionVectors"])
    options = SourceOptions(table_prefixes=(str(other),))
    left = [*range(10), 0, 1, *range(3, 10)]
    store_index(str(table), str(tmp_path / "index"), source_options=options)
    by_index = replace(options, index_of=str(table))

    for place, chosen in ((table, options), (tmp_path / "index", by_index)):
        with open_dataset(str(place), source_options=chosen) as dataset:
            assert isinstance(dataset, ParquetDataset)
            assert Counter(left) == Counter(all_samples(dataset).column("number").to_pylist())
    for prefixes in ((), (str(tmp_path / "the orig"),)):
        with pytest.raises(ConfigurationError, match="clone"):
            open_dataset(str(table), source_options=SourceOptions(table_prefixes=prefixes))
    write_file(other / "1.parquet", table_of(range(11)))
    with pytest.raises(ShardCorruptError, match="has changed"):
        open_dataset(str(tmp_path / "index"), source_options=by_index)


_ESCAPES = {
    "a sibling whose name begins alike": "file://{root}/lake-secret/1.parquet",
    "upwards": "file://{root}/lake/../lake-secret/1.parquet",
    "upwards, escaped": "file://{root}/lake/%2e%2e/lake-secret/1.parquet",
    "upwards, with escaped slashes": "file://{root}/lake/..%2Flake-secret%2F1.parquet",
    "upwards, escaped twice": "file://{root}/lake/%252e%252e/lake-secret/1.parquet",
    "nothing in between": "file://{root}/lake//../lake-secret/1.parquet",
    "a link": "file://{root}/lake/link/1.parquet",
    "the prefix itself": "file://{root}/lake",
    "another host": "file://elsewhere{root}/lake/1.parquet",
    "another kind of store": "s3://{root}/lake/1.parquet",
    "a name of the store inside": "file:{root}/lake-secret/1.parquet",
    "the same, escaped": "file%3A{root}/lake/../lake-secret/1.parquet",
}


@pytest.mark.parametrize("path", _ESCAPES.values(), ids=_ESCAPES.keys())
def test_nothing_beyond_a_prefix_is_read(tmp_path: Path, path: str) -> None:
    """Whoever writes a table's log must not choose what its readers read."""
    table, lake, secret = (tmp_path / name for name in ("table", "lake", "lake-secret"))
    for folder in (table, lake, secret):
        folder.mkdir()
    write_file(table / "1.parquet", table_of(range(10)))
    write_file(secret / "1.parquet", table_of(range(10)))
    (lake / "link").symlink_to(secret, target_is_directory=True)
    action = add(secret, "1.parquet")
    action["add"]["path"] = path.format(root=quote(str(tmp_path)))  # type: ignore[index] # see add
    write_log(table, _NUMBERS, [action, add(table, "1.parquet")])

    with (
        pytest.raises(HeadraceError),
        open_dataset(
            str(table), source_options=SourceOptions(table_prefixes=(str(lake),))
        ) as dataset,
    ):
        dataset.read_block(0)


def test_files_below_a_prefix_in_a_bucket_are_read(s3: S3, tmp_path: Path) -> None:
    """Those of the bucket beside it are not."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    with closing(open_store(s3.url("lake"))) as lake, closing(open_store(s3.url("other"))) as other:
        for store in (lake, other):
            store.write("1.parquet", (tmp_path / "1.parquet").read_bytes())
    options = SourceOptions(table_prefixes=(s3.url("lake").replace("s3://", "s3a://"),))
    for name in ("lake", "other"):
        action = add(tmp_path, "1.parquet")
        action["add"]["path"] = s3.url(f"{name}/1.parquet")  # type: ignore[index] # see add
        (tmp_path / name).mkdir()
        write_log(tmp_path / name, _NUMBERS, [action])

    with open_dataset(str(tmp_path / "lake"), source_options=options) as dataset:
        assert isinstance(dataset, ParquetDataset)
        assert Counter(range(10)) == Counter(all_samples(dataset).column("number").to_pylist())
    with pytest.raises(ConfigurationError, match="clone"):
        open_dataset(str(tmp_path / "other"), source_options=options)


@pytest.mark.parametrize("prefix", ["", "/", "s3://", "warehouse", "file:///"])
def test_prefixes_are_places(prefix: str) -> None:
    """None that all files are below, and none that depends on where a server starts."""
    with pytest.raises(BadArgumentError, match="expected URLs of folders or buckets"):
        SourceOptions(table_prefixes=(prefix,))


def test_vacuumed_and_changed_files_are_named(tmp_path: Path) -> None:
    """A file of the log that is gone, or of another size, is an error with its name."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    write_log(tmp_path, _NUMBERS, [add(tmp_path, "1.parquet")])

    write_file(tmp_path / "1.parquet", table_of(range(500)))
    with pytest.raises(ShardCorruptError, match=r"1\.parquet in .* has changed"):
        open_parquet(str(tmp_path))
    (tmp_path / "1.parquet").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"1\.parquet .* is missing"):
        open_parquet(str(tmp_path))


def test_type_of_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A file whose column cannot be what the table says is named with both types."""
    write_file(tmp_path / "1.parquet", pa.table({"number": [[1]], "text": ["x"]}))
    write_file(
        tmp_path / "2.parquet", pa.table({"number": [True], "text": [dict.fromkeys("ab", 1)]})
    )
    write_log(tmp_path, _NUMBERS, [add(tmp_path, "1.parquet"), add(tmp_path, "2.parquet")])

    with pytest.raises(UnsupportedColumnError, match="number"):
        _numbers(tmp_path)


def test_unknown_feature_is_named(tmp_path: Path) -> None:
    """A table that asks more of readers is refused, whoever notices."""
    write_file(tmp_path / "1.parquet", table_of(range(10)))
    write_log(tmp_path, _NUMBERS, [add(tmp_path, "1.parquet")], features=["teleport"])

    with pytest.raises((ConfigurationError, ManifestCorruptError), match="teleport"):
        open_parquet(str(tmp_path))


def test_broken_log_is_refused(tmp_path: Path) -> None:
    """A log that is not JSON is a ManifestCorruptError."""
    write_deltalake(tmp_path, table_of(range(3)))
    log = next((tmp_path / "_delta_log").glob("*.json"))
    log.write_text(json.dumps({"add": 3}) + "\n{")

    with pytest.raises(ManifestCorruptError):
        open_parquet(str(tmp_path))


def test_delta_table_in_s3(s3: S3) -> None:
    """A table in a bucket is written by delta-rs and read with the credentials of the stores."""
    options = {**s3.weed.environment(), "AWS_ALLOW_HTTP": "true", "aws_conditional_put": "etag"}
    url = s3.url("table")
    parts = table_of(range(20)).append_column("part", [["a b"] * 5 + ["c"] * 15])
    write_deltalake(url, parts, partition_by=["part"], storage_options=options)
    write_deltalake(url, parts, mode="append", storage_options=options)

    assert sorted(range(20)) == _numbers(url, version=0)
    assert sorted([*range(20), *range(20)]) == _numbers(url)
