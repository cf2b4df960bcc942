"""make_converter: converted once for one plan, found again, read at once, gone when it should."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyspark.sql import functions as sf

from headrace.client import Cast
from headrace.converter import (
    CACHE_SETTING,
    Conversion,
    Function,
    Progress,
    WriteOptions,
    make_converter,
)
from headrace.converter.keys import conversion_key
from headrace.errors import BadArgumentError, HeadraceError
from headrace.storage import StoreOptions, open_dataset, open_store
from support.private import end_servers
from support.s3 import S3

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SAMPLES = 60


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for private servers, which are ended afterwards."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield
    end_servers(folder)


def _frame(spark: SparkSession) -> DataFrame:
    return spark.range(SAMPLES, numPartitions=2).withColumn("half", sf.col("id") / 2)


def _first(count: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.slice(0, count)

    return first


def _key(df: DataFrame) -> str:
    return conversion_key(df, {}).text


def _objects(cache: Path) -> dict[str, float]:
    return {entry.name: entry.written_s for entry in open_store(str(cache)).list_entries()}


def test_an_equal_frame_is_converted_once(spark: SparkSession, tmp_path: Path) -> None:
    """Built again from the same source it is found; the second call starts no job."""
    first = make_converter(_frame(spark), cache_dir=str(tmp_path))
    before = _objects(tmp_path)
    told: list[Progress] = []
    second = make_converter(_frame(spark), cache_dir=str(tmp_path), progress=told.append)

    assert first == second
    assert (SAMPLES, []) == (len(second), told)
    assert before == _objects(tmp_path)
    with open_dataset(first.url) as dataset:
        assert first.fingerprint == dataset.fingerprint


def test_a_conversion_is_small_and_travels(spark: SparkSession, tmp_path: Path) -> None:
    """It may be a function's argument: no data comes along."""
    conversion = make_converter(_frame(spark), cache_dir=str(tmp_path))
    shipped = pickle.dumps(conversion)

    assert conversion == pickle.loads(shipped)
    assert len(shipped) < 2048


def test_keys_follow_what_is_computed(spark: SparkSession, tmp_path: Path) -> None:
    """Equal plans share a key; another condition, name, option or reader has another."""
    table = tmp_path / "t.csv"
    table.write_text("x,y\n1,2\n3,NA\n")

    def csv(null: str = "NA", least: int = 0) -> DataFrame:
        reader = spark.read.option("header", value=True).option("nullValue", null)
        return reader.csv(str(table)).where(sf.col("x") > least)

    frames: list[Callable[[], DataFrame]] = [
        csv,
        lambda: csv(null="1"),
        lambda: csv(least=1),
        lambda: spark.range(5).toDF("a"),
        lambda: spark.range(5).toDF("b"),
        lambda: spark.sql("select * from values (1), (2) as t(x)"),
        lambda: spark.sql("select * from values (1), (3) as t(x)"),
        lambda: spark.range(3).select(*(sf.col("id").alias(f"c{n}") + n for n in range(40))),
        lambda: spark.range(3).select(
            *(sf.col("id").alias(f"c{n}") + (n if n < 39 else 0) for n in range(40))
        ),
    ]
    keys = [_key(frame()) for frame in frames]

    assert len(frames) == len(set(keys))
    for same in (0, 1, 2, 3, 5, 7):
        assert keys[same] == _key(frames[same]())
    assert keys[0] != conversion_key(frames[0](), {"compression": "zstd"}).text


def test_columns_types_and_a_function_are_part_of_it(spark: SparkSession, tmp_path: Path) -> None:
    """Each gives a conversion of its own, with the samples asked for; a name finds a function's."""

    def convert(**settings: Any) -> Conversion:
        return make_converter(_frame(spark), cache_dir=str(tmp_path), **settings)

    plain = convert()
    typed = convert(columns={"half": "h", "id": "n"}, write=WriteOptions(types={"n": "int32"}))
    three, again, four = (
        convert(function=Function(_first(count), "id long, half double"), key=f"first {count}")
        for count in (3, 3, 4)
    )

    assert 4 == len({plain.key, typed.key, three.key, four.key})
    assert three == again
    assert (SAMPLES, 6, 8) == (len(typed), len(three), len(four))
    with open_dataset(typed.url) as dataset:
        assert {"h": pa.float64(), "n": pa.int32()} == {f.name: f.type for f in dataset.schema}


def test_a_changed_file_changes_the_key(spark: SparkSession, tmp_path: Path) -> None:
    """The same plan over a file that was written again is converted again."""
    table = tmp_path / "t.csv"
    table.write_text("x\n1\n")
    before = _key(spark.read.csv(str(table)))
    table.write_text("x\n12\n")

    assert before != _key(spark.read.csv(str(table)))


def test_rows_of_an_rdd_are_not_taken_for_others(spark: SparkSession) -> None:
    """Spark does not show what is in them, so each such frame is its own."""
    one, other = (spark.sparkContext.parallelize([(n,)], 1).toDF(["x"]) for n in (1, 2))

    assert _key(one) != _key(other)


def test_it_is_read_at_once(spark: SparkSession, s3: S3, runtime: None) -> None:
    """From S3 through a private server: torch tensors and NumPy arrays, every sample once."""
    del runtime
    conversion = make_converter(_frame(spark), cache_dir=s3.url("conversions"))
    dataset = conversion.dataset(batch_size=16, epochs=1, end="uneven", seed=3)
    batches = list(dataset)
    dataset.close()
    arrays = list(conversion.numpy_dataset(batch_size=16, epochs=1, end="uneven", seed=3))

    ids = [torch.as_tensor(batch["id"]) for batch in batches]
    assert [part.tolist() for part in ids] == [part["id"].tolist() for part in arrays]
    assert list(range(SAMPLES)) == sorted(torch.cat(ids).tolist())
    assert torch.equal(torch.as_tensor(batches[0]["half"]) * 2, ids[0].double())


def test_batches_have_the_types_and_steps_that_are_asked_for(
    spark: SparkSession, tmp_path: Path, runtime: None
) -> None:
    """As tensors and as arrays; a function of the loop's comes last, and `with` closes it."""
    del runtime
    conversion = make_converter(_frame(spark), cache_dir=str(tmp_path))
    reading: dict[str, Any] = {
        "batch_size": 16,
        "epochs": 1,
        "shuffle": False,
        "dtypes": {"half": "float32"},
        "stages": [Cast("id", "int16")],
    }
    with conversion.dataset(**reading, transform=lambda batch: batch.to_numpy()) as dataset:
        (first, *_) = list(dataset)
    with conversion.numpy_dataset(**reading) as arrays:
        (same, *_) = list(arrays)

    both: list[Any] = [first, same]
    for found in both:
        assert {"half": np.float32, "id": np.int16} == {
            name: column.dtype for name, column in found.items()
        }
        assert list(range(16)) == found["id"].tolist()
        assert [number / 2 for number in range(16)] == found["half"].tolist()


@pytest.mark.parametrize("dtypes", ["float32", {1: "float32"}, {"half": "complex"}, {"half": None}])
def test_types_that_are_none_are_refused(dtypes: Any, tmp_path: Path) -> None:
    """Before anything is started, by the name of the argument or of the type."""
    conversion = Conversion(
        url=str(tmp_path),
        fingerprint="",
        sample_count=1,
        key="",
        cache_dir=str(tmp_path),
        options=StoreOptions(),
    )

    with pytest.raises(BadArgumentError, match="dtype"):
        conversion.dataset(batch_size=1, dtypes=dtypes)


def test_it_is_read_as_it_was_written(
    spark: SparkSession, s3: S3, runtime: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the options given, secrets among them, where the environment knows of no store."""
    del runtime
    for variable in s3.weed.environment():
        monkeypatch.delenv(variable)
    options = StoreOptions(
        endpoint=s3.weed.endpoint,
        region=s3.weed.region,
        access_key=s3.weed.access_key,
        secret_key=s3.weed.secret_key,
    )
    conversion = make_converter(_frame(spark), cache_dir=s3.url("conversions"), options=options)
    travelled = pickle.loads(pickle.dumps(conversion))
    dataset = travelled.dataset(batch_size=16, epochs=1, end="uneven")
    ids = torch.cat([torch.as_tensor(batch["id"]) for batch in dataset])
    dataset.close()
    arrays = list(conversion.numpy_dataset(batch_size=16, epochs=1, end="uneven"))

    assert list(range(SAMPLES)) == sorted(ids.tolist())
    assert list(range(SAMPLES)) == sorted(n for part in arrays for n in part["id"].tolist())


def test_delete_removes_it_for_good(spark: SparkSession, s3: S3) -> None:
    """Nothing of it is left in the store; again is no error; the next call converts again."""
    conversion = make_converter(_frame(spark), cache_dir=s3.url("conversions"))
    other = make_converter(_frame(spark).limit(5), cache_dir=s3.url("conversions"))
    conversion.delete()
    conversion.delete()
    left = list(open_store(s3.url("conversions")).list())

    with pytest.raises(HeadraceError):
        open_dataset(conversion.url)
    assert left
    assert not [name for name in left if conversion.key in name]
    assert 5 == len(other)
    assert conversion == make_converter(_frame(spark), cache_dir=s3.url("conversions"))


def test_what_expired_is_converted_anew_and_removed(spark: SparkSession, tmp_path: Path) -> None:
    """An expired conversion is not used, and the next call removes it, whatever it converts."""
    first = make_converter(_frame(spark), cache_dir=str(tmp_path), expire_after_s=0)
    told: list[Progress] = []
    make_converter(
        _frame(spark), cache_dir=str(tmp_path), expire_after_s=3600, progress=told.append
    )
    other = make_converter(_frame(spark).limit(3), cache_dir=str(tmp_path), expire_after_s=0)
    make_converter(_frame(spark), cache_dir=str(tmp_path))

    assert told
    assert open_store(first.url).read("headrace.json")
    assert not [name for name in _objects(tmp_path) if other.key in name]
    assert not Path(other.url).exists()


def test_the_cache_may_be_named_by_a_setting(spark: SparkSession, tmp_path: Path) -> None:
    """As Petastorm's users do it, once for a session."""
    spark.conf.set(CACHE_SETTING, str(tmp_path))
    try:
        conversion = make_converter(spark.range(4))
    finally:
        spark.conf.unset(CACHE_SETTING)

    assert isinstance(conversion, Conversion)
    assert str(tmp_path / conversion.key) == conversion.url


def test_a_negative_expiry_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is converted."""
    with pytest.raises(BadArgumentError, match="expire_after_s is -1"):
        make_converter(spark.range(1), cache_dir=str(tmp_path), expire_after_s=-1)
