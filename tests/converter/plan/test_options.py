"""What of a DataFrame is written, in which order, and into how many datasets."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession

from headrace.converter import Function, WriteOptions, write_shards
from headrace.converter.columns.stored_columns import stored_batch
from headrace.converter.plan.schema import plan_columns
from headrace.converter.samples.splits import make_splitter
from headrace.converter.spark.select_rows import shuffled
from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.storage import open_dataset, open_store


def _samples(url: str) -> list[dict[str, Any]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


def test_columns_are_chosen_renamed_and_typed(spark: SparkSession, tmp_path: Path) -> None:
    """Names with dots too; the type named is that of an array's items; bytes say what they are."""
    frame = spark.sql(
        "select id as `a.b`, cast(id * 2 as string) as text, array(id, 255L) as pixels, "
        "encode('x', 'utf-8') as jpeg, id as unused from range(0, 3, 1, 1)"
    )
    write_shards(
        frame,
        str(tmp_path),
        columns={"pixels": "image", "a.b": "number", "text": "text", "jpeg": "jpeg"},
        write=WriteOptions(
            types={"image": "uint8", "number": "smallint", "text": pa.float32()},
            formats={"jpeg": "jpeg"},
            compression="zstd",
            compression_level=9,
        ),
    )

    with open_dataset(str(tmp_path)) as dataset:
        schema = dataset.schema
    item = pa.field("item", pa.uint8(), nullable=False)
    assert schema.names == ["image", "number", "text", "jpeg"]
    assert [pa.list_(item, 2), pa.int16(), pa.float32(), pa.binary()] == schema.types
    assert {b"headrace.format": b"jpeg"} == schema.field("jpeg").metadata
    assert [
        {"image": [row, 255], "number": row, "text": 2.0 * row, "jpeg": b"x"} for row in range(3)
    ] == _samples(str(tmp_path))


def _batch(kind: pa.DataType, values: list[object]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, kind)], ["x"])


@pytest.mark.parametrize(
    ("kind", "values", "wanted", "message"),
    [
        (pa.int64(), [1, 300], "uint8", "sample 8 of its task is 300"),
        (pa.float64(), [1.0, 1.5], "int32", r"sample 8 .* is 1\.5"),
        (pa.float64(), [1.0, 1e300], "float32", "sample 8 .* infinite"),
        (pa.string(), ["1", "one"], "int32", "sample 8 .* is 'one'"),
        (pa.list_(pa.int32()), [[1], [2, -1]], "uint8", r"sample 8 .* is \[2, -1\]"),
        (pa.list_(pa.float64()), [[], [1e300]], "float16", "sample 8 .* infinite"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_named(
    kind: pa.DataType, values: list[object], wanted: str, message: str
) -> None:
    """The column, the sample, the value and the type; nothing wraps around or is cut."""
    plans = plan_columns(pa.schema([("x", kind)]), WriteOptions(types={"x": wanted}))

    with pytest.raises(BadArgumentError, match=rf"column 'x': {message}"):
        stored_batch(_batch(kind, values), plans, first_sample=7)


def test_void_columns_are_bools_without_values(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing tells their type, so they take the smallest one; empty arrays stay empty."""
    frame = spark.sql("select null as v, array() as a, struct(null as n) as s, 1 as x")
    write_shards(frame, str(tmp_path), write=WriteOptions(types={"a": "int32"}))

    with open_dataset(str(tmp_path)) as dataset:
        schema = dataset.schema
    assert pa.bool_() == schema.field("v").type
    assert pa.list_(pa.field("item", pa.int32(), nullable=False)) == schema.field("a").type
    assert [{"v": None, "a": [], "s": {"n": None}, "x": 1}] == _samples(str(tmp_path))


def test_vectors_become_lists_of_numbers(spark: SparkSession, tmp_path: Path) -> None:
    """Dense and sparse ones, in one column or two; with one length they are tensors."""
    rows = [
        (Vectors.dense([1.0, 0.0, 2.5]), Vectors.sparse(4, [1, 3], [7.0, 8.0])),
        (Vectors.sparse(3, [2], [4.0]), None),
        (Vectors.sparse(3, [], []), Vectors.dense([9.0])),
    ]
    frame = spark.createDataFrame(rows, ["mixed", "holes"]).coalesce(1)
    write_shards(frame, str(tmp_path), write=WriteOptions(types={"mixed": "float32"}))

    with open_dataset(str(tmp_path)) as dataset:
        schema = dataset.schema
    item = pa.field("item", pa.float32(), nullable=False)
    assert pa.list_(item, 3) == schema.field("mixed").type
    assert [
        {"mixed": [1.0, 0.0, 2.5], "holes": [0.0, 7.0, 0.0, 8.0]},
        {"mixed": [0.0, 0.0, 4.0], "holes": None},
        {"mixed": [0.0, 0.0, 0.0], "holes": [9.0]},
    ] == _samples(str(tmp_path))


def _doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        numbers = batch.column("id").to_numpy()
        yield pa.record_batch([pa.array(np.repeat(numbers, 2))], ["half"])


def _described(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield pd.DataFrame({"when": frame["t"], "double": frame["id"] * 2})


def _odd(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["id"] % 2:
            yield {"id": row["id"], "tags": {"v": row["v"][0]}}


def test_functions_over_batches_frames_and_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Each yields as many rows as it likes, with a schema of its own, Spark's or Arrow's."""
    numbers = spark.range(0, 4, 1, 1)
    halves = Function(_doubled, pa.schema([("half", pa.uint8())]))
    write_shards(numbers, str(tmp_path / "arrow"), function=halves)
    timed = spark.sql("select id, timestamp'2020-01-02 03:04:05Z' as t from range(2)").coalesce(1)
    described = Function(_described, "double int, when timestamp", over="pandas")
    write_shards(timed, str(tmp_path / "pandas"), function=described)
    vectors = spark.createDataFrame(
        [(n, Vectors.sparse(2, [0], [n])) for n in range(4)], ["id", "v"]
    )
    odd = Function(_odd, "id long, tags map<string, double>", over="rows")
    write_shards(vectors.coalesce(1), str(tmp_path / "rows"), function=odd)

    instant = dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
    assert [0, 0, 1, 1, 2, 2, 3, 3] == [row["half"] for row in _samples(str(tmp_path / "arrow"))]
    assert [{"double": 2 * n, "when": instant} for n in range(2)] == _samples(
        str(tmp_path / "pandas")
    )
    assert [{"id": n, "tags": [("v", float(n))]} for n in (1, 3)] == _samples(
        str(tmp_path / "rows")
    )


def _fragile(rows: Iterator[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        if row["id"] == 7:
            raise ValueError("seven is not for me")
        yield {"id": row["id"]}


def test_a_function_that_raises_is_told_whole(spark: SparkSession, tmp_path: Path) -> None:
    """Its traceback, the partition and the row; nothing is left."""
    function = Function(_fragile, "id long", over="rows")

    with pytest.raises(BadArgumentError) as caught:
        write_shards(spark.range(0, 10, 1, 2), str(tmp_path), function=function)

    assert "failed at row 2 of partition 1: ValueError: seven is not for me" in caught.value.message
    assert "in _fragile\n    raise ValueError" in caught.value.message
    assert ("1", "2") == (caught.value.metadata["partition"], caught.value.metadata["row"])
    assert list(open_store(str(tmp_path)).list()) == []


def test_a_shuffle_follows_from_the_seed_alone(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever the partitions were; every row is there, in another order."""
    written = []
    for place, seed, partitions in (("a", 7, 1), ("b", 7, 3), ("c", 8, 3)):
        frame = spark.range(0, 400, 1, partitions).selectExpr("id", "map('k', id) as m")
        write_shards(frame, str(tmp_path / place), shuffle_seed=seed)
        written.append([row["id"] for row in _samples(str(tmp_path / place))])

    assert written[0] == written[1] != written[2]
    assert list(range(400)) == sorted(written[0]) == sorted(written[2])
    assert abs(np.corrcoef(written[0], np.arange(400))[0, 1]) < 0.25


def test_rows_that_differ_in_where_they_are_null_have_one_order(spark: SparkSession) -> None:
    """Spark's hash passes over nulls; the order of such rows depends on them all the same."""
    rows = [
        (n, m, items, {"k": m})
        for n in (None, 1, 2)
        for m in (None, 1, 2)
        for items in ([], [None])
    ]
    schema = "a int, b int, c array<int>, m map<string, int>"
    frames = [
        spark.createDataFrame(given, schema) for given in (rows, rows[::-1], rows[1::2] + rows[::2])
    ]
    orders = [
        shuffled(parts, seed=7).collect()
        for frame in frames
        for parts in (frame, frame.coalesce(1), frame.repartition(3))
    ]

    assert [orders[0]] * len(orders) == orders
    assert len(rows) == len({repr(row) for row in orders[0]})


def test_splits_by_fraction_are_written_in_one_pass(spark: SparkSession, tmp_path: Path) -> None:
    """Each sample is in one split, each split keeps the order, and the seed chooses."""
    frame = spark.range(0, 1000, 1, 2)
    fractions = {"train": 0.8, "val": 0.1, "test": 0.1}
    manifests = write_shards(frame, str(tmp_path), splits=fractions, split_seed=3)
    ids = {split: [row["id"] for row in _samples(f"{tmp_path}/{split}")] for split in fractions}

    assert list(fractions) == list(manifests)
    assert {split: len(found) for split, found in ids.items()} == {
        split: manifest.sample_count for split, manifest in manifests.items()
    }
    assert list(range(1000)) == sorted(itertools.chain(*ids.values()))
    assert all(sorted(found) == found for found in ids.values())
    assert 700 < len(ids["train"]) < 900


def test_the_draw_of_splits_is_fair_and_repeatable() -> None:
    """Near the fractions over many samples, the same for the same seed, other for others."""
    fractions = {"a": 0.5, "b": 0.3, "c": 0.2}
    batch = pa.record_batch([pa.array(np.arange(100_000))], ["x"])

    def counts(seed: int, partition: int) -> dict[str, list[Any]]:
        splitter = make_splitter(fractions, seed=seed)
        parts = splitter.parts(batch, partition=partition, first_sample=0)
        return {name: part.column("x").to_pylist() for name, part in parts}

    first = counts(1, 0)
    for name, fraction in fractions.items():
        assert abs(len(first[name]) / 100_000 - fraction) < 0.01
    assert first == counts(1, 0)
    assert first != counts(2, 0)
    assert first != counts(1, 1)


def test_splits_by_a_column_leave_it_out(spark: SparkSession, tmp_path: Path) -> None:
    """As many datasets as the column has values, also as MDS."""
    frame = spark.range(0, 9, 1, 2).selectExpr("id", "id % 3 as fold")
    arrow = write_shards(frame, str(tmp_path / "arrow"), splits="fold")
    mds = write_shards(frame, str(tmp_path / "mds"), splits="fold", format="mds")

    assert ["0", "1", "2"] == sorted(arrow) == sorted(mds)
    for fold in range(3):
        wanted = [{"id": fold + step} for step in (0, 3, 6)]
        assert wanted == _samples(f"{tmp_path}/arrow/{fold}")
        assert wanted == _samples(f"{tmp_path}/mds/{fold}")


def test_a_split_without_samples_stops_all(spark: SparkSession, tmp_path: Path) -> None:
    """Before the first commit, so nothing is half there."""
    with pytest.raises(BadArgumentError, match=r"no samples for the split 'rare'.*'most': 5"):
        write_shards(spark.range(5), str(tmp_path), splits={"most": 1 - 1e-7, "rare": 1e-7})

    assert list(open_store(str(tmp_path)).list()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": []}, r"columns is \[\]"),
        ({"columns": {"id": "a", "text": "a"}}, "distinct names"),
        ({"write": WriteOptions(types={"id": "int7"})}, "types has 'int7' for column 'id'"),
        ({"write": WriteOptions(formats={"id": "jpeg"})}, "formats has 'jpeg' for column 'id'"),
        ({"splits": {"a": 0.5}}, "fractions above 0 with the sum 1"),
        ({"splits": {"a/b": 1.0}}, "'a/b' cannot be the name of a split"),
        ({"format": "tar"}, "format is 'tar', expected one of arrow, mds"),
        (
            {"write": WriteOptions(compression_level=99)},
            "compression_level is 99, expected 1 to 12 for lz4",
        ),
        ({"write": WriteOptions(compression="none", compression_level=1)}, "leave one out"),
        ({"format": "mds", "write": WriteOptions(compression="lz4")}, "lz4"),
        ({"progress": "dots"}, "progress is 'dots'"),
        ({"function": Function(_odd, "id wrong")}, "the function's schema is 'id wrong'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_first(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """Before any job: the argument, its value, what is wanted."""
    frame = spark.sql("select 1 as id, 'a' as text")

    with pytest.raises(BadArgumentError, match=message):
        write_shards(frame, str(tmp_path), **arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"columns": ["no"]}, {"write": WriteOptions(types={"no": "int8"})}, {"splits": "no"}],
)
def test_columns_that_are_not_there_are_refused_first(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any]
) -> None:
    """With the names there are."""
    with pytest.raises(ColumnNotFoundError, match=r"no.*id"):
        write_shards(spark.range(1), str(tmp_path), **arguments)


@pytest.mark.parametrize(
    ("expression", "arguments", "message"),
    [
        ("struct(1 as a)", {"write": WriteOptions(types={"x": "int32"})}, "there is no cast"),
        ("date'2020-01-02'", {"format": "mds"}, "MDS has no encoding"),
    ],
)
def test_types_that_nothing_can_hold_are_refused_first(
    spark: SparkSession, tmp_path: Path, expression: str, arguments: dict[str, Any], message: str
) -> None:
    """A cast that Arrow has not, a type that the format has not."""
    with pytest.raises(UnsupportedColumnError, match=message):
        write_shards(spark.sql(f"select {expression} as x"), str(tmp_path), **arguments)
