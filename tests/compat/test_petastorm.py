"""Programs for Petastorm, with their imports changed: every sample once, with the same values."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from headrace.compat.petastorm import TransformSpec, make_batch_reader
from headrace.compat.petastorm.pytorch import BatchedDataLoader, DataLoader
from headrace.compat.petastorm.spark import SparkDatasetConverter, make_spark_converter
from headrace.compat.petastorm.transform import edit_field
from headrace.errors import BadArgumentError
from support.private import end_servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS = 100


@pytest.fixture(autouse=True, scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A place for the private servers of all tests, which then end."""
    folder = tmp_path_factory.mktemp("run")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield
    end_servers(folder)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Parquet in two files of two row groups: numbers, numbers with nulls, texts, vectors."""
    folder = tmp_path_factory.mktemp("table")
    for part in range(2):
        ids = range(part * _ROWS // 2, (part + 1) * _ROWS // 2)
        columns = {
            "id": pa.array(ids, pa.int64()),
            "flag": pa.array([number % 2 == 0 for number in ids]),
            "small": pa.array([number % 7 for number in ids], pa.uint16()),
            "gap": pa.array([None if number % 3 == 0 else number for number in ids], pa.int32()),
            "text": pa.array([f"row {number}" for number in ids]),
            "vector": pa.array([[number, 0.5] for number in ids], pa.list_(pa.float32(), 2)),
        }
        pq.write_table(pa.table(columns), folder / f"part-{part}.parquet", row_group_size=25)
    return f"file://{folder}"


def _ids(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("shards", [1, 3])
def test_shards_share_each_epoch_without_loss_or_repeat(
    table: str, epochs: int, shards: int
) -> None:
    """Counted over all shards, also where batches do not divide their samples."""
    seen: Counter[int] = Counter()
    for shard in range(shards):
        reader = make_batch_reader(
            table, ["id"], num_epochs=epochs, cur_shard=shard, shard_count=shards, workers_count=3
        )
        with DataLoader(reader, batch_size=8) as loader:
            seen.update(_ids(loader))

    assert dict.fromkeys(range(_ROWS), epochs) == seen


def test_shards_follow_each_other_in_lockstep_without_an_end(table: str) -> None:
    """Batches are whole on every shard, and none is in two shards of an epoch."""
    found = []
    for shard in range(3):
        reader = make_batch_reader(table, num_epochs=None, cur_shard=shard, shard_count=3)
        with DataLoader(reader, batch_size=8) as loader:
            found.append([batch["id"].tolist() for _, batch in zip(range(9), loader, strict=False)])

    assert {8} == {len(batch) for shard in found for batch in shard}
    for epoch in range(2):
        ids = [each for shard in found for batch in shard[epoch * 4 :][:4] for each in batch]
        assert 96 == len(set(ids))


def test_the_order_of_storage_is_kept_only_without_any_shuffling(table: str) -> None:
    """As theirs: row groups are shuffled unless one says no, and a queue shuffles in any case."""
    plain = partial(make_batch_reader, table, shuffle_row_groups=False)
    with DataLoader(plain(), batch_size=16) as loader:
        assert list(range(_ROWS)) == _ids(loader)
        assert list(range(_ROWS)) == _ids(loader)  # a second loop reads it again
    reader = plain()
    with DataLoader(reader, batch_size=16, shuffling_queue_capacity=10) as loader:
        assert list(range(_ROWS)) != _ids(loader)
    by_seed = []
    for seed in (None, 0, 1):
        with DataLoader(make_batch_reader(table, seed=seed), batch_size=16) as loader:
            by_seed.append(_ids(loader))

    assert by_seed[0] == by_seed[1] != by_seed[2]
    assert list(range(_ROWS)) == sorted(by_seed[2])


def test_a_reader_gives_rows_as_pandas_holds_them(table: str) -> None:
    """Numbers that are null are NaN; texts are objects; names are attributes."""
    with make_batch_reader(table, shuffle_row_groups=False) as reader:
        (rows,) = list(reader)
        assert reader.last_row_consumed
        reader.reset()
        assert _ROWS == sum(len(each.id) for each in reader)

    assert ("id", "flag", "small", "gap", "text", "vector") == rows._fields
    assert ["row 0", "row 1"] == rows.text[:2].tolist()
    assert np.isnan(rows.gap[0])
    assert [1, 2] == rows.gap[1:3].tolist()
    assert (_ROWS, 2) == rows.vector.shape


def test_tensors_have_the_types_that_petastorm_widens_to(table: str) -> None:
    """And a function of a user's own sees samples."""
    with DataLoader(make_batch_reader(table), batch_size=4) as loader:
        batch = next(iter(loader))
    with BatchedDataLoader(
        make_batch_reader(table, ["vector"]), batch_size=4, transform_fn=torch.from_numpy
    ) as loader:
        whole = next(iter(loader))
    with DataLoader(make_batch_reader(table), batch_size=4, collate_fn=list) as loader:
        samples = next(iter(loader))

    types = {name: value.dtype for name, value in batch.items() if name != "text"}
    assert {
        "id": torch.int64,
        "flag": torch.uint8,
        "small": torch.int32,
        "gap": torch.float64,
        "vector": torch.float32,
    } == types
    assert all(isinstance(text, str) for text in batch["text"])
    assert (4, 2) == whole["vector"].shape
    assert [f"row {sample['id']}" for sample in samples] == [sample["text"] for sample in samples]


def _doubled(frame: pd.DataFrame) -> pd.DataFrame:
    frame["double"] = [np.stack([row, row]) for row in frame["vector"]]
    frame["text"] = frame["text"].str.upper()
    return frame


def test_a_transform_spec_decides_what_batches_hold(table: str) -> None:
    """Its function gets a frame; the fields say what comes of it."""
    edits = [edit_field("double", np.float32, (4,)), ("text", np.str_, (), False)]
    spec = TransformSpec(_doubled, edit_fields=edits, selected_fields=["text", "double"])
    with DataLoader(make_batch_reader(table, transform_spec=spec), batch_size=8) as loader:
        batch = next(iter(loader))
    spec = TransformSpec(removed_fields=["vector", "text", "gap"])
    with DataLoader(make_batch_reader(table, transform_spec=spec), batch_size=8) as loader:
        plain = next(iter(loader))

    assert ["text", "double"] == list(batch)
    assert [f"ROW {int(row[0])}" for row in batch["double"]] == batch["text"]
    assert torch.Size([8, 4]) == batch["double"].shape
    assert ["id", "flag", "small"] == list(plain)


def _wrong_shape(frame: pd.DataFrame) -> pd.DataFrame:
    frame["double"] = list(frame["vector"])
    return frame


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (partial(TransformSpec, lambda _: None), "returned NoneType; expected a pandas.DataFrame"),
        (partial(TransformSpec, selected_fields=["x"]), "'x', which is no column"),
        (partial(TransformSpec, lambda frame: frame, [edit_field("x", "f4", ())]), "'x', which"),
        (
            partial(TransformSpec, _wrong_shape, [edit_field("double", "f4", (3,))]),
            r"'double' is not \(3,\) of float32",
        ),
    ],
)
def test_a_transform_that_breaks_its_word_is_named(table: str, spec: Any, words: str) -> None:
    """Instead of a batch that lacks something."""
    loader = DataLoader(make_batch_reader(table, transform_spec=spec()), batch_size=8)
    with loader, pytest.raises(Exception, match=words):
        next(iter(loader))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"predicate": object()}, "predicate is given, which headrace has not; use a condition"),
        ({"filters": [("id", "<", 3)]}, "filters is given"),
        ({"cur_shard": 1}, "expected both or none"),
        ({"shards": 1}, "shards is no argument"),
        ({"cur_shard": 3, "shard_count": 3}, "rank"),
    ],
)
def test_arguments_that_would_change_samples_are_refused(
    table: str, arguments: dict[str, Any], words: str
) -> None:
    """By name, and with what to do."""
    with pytest.raises(Exception, match=words):
        next(iter(DataLoader(make_batch_reader(table, **arguments), batch_size=4)))


def test_a_batch_larger_than_a_shard_is_refused_instead_of_a_loop_without_end(table: str) -> None:
    """Without an end there is no last batch that might be smaller."""
    loader = DataLoader(make_batch_reader(table, num_epochs=None), batch_size=_ROWS + 1)
    with loader, pytest.raises(BadArgumentError, match="use a smaller batch_size"):
        next(iter(loader))


def _frame(spark: SparkSession, folder: Path) -> DataFrame:
    """Return a frame whose plan says all that it computes: vectors are made by a function."""
    from pyspark.ml.functions import array_to_vector  # noqa: PLC0415 - Spark
    from pyspark.sql import functions as sf  # noqa: PLC0415 - Spark

    made = spark.range(_ROWS, numPartitions=2).select(
        "id",
        (sf.col("id") / 2).alias("half"),
        sf.array(sf.col("id") * 1.0, sf.lit(0.25)).alias("pair"),
        array_to_vector(sf.array(sf.col("id") * 1.0, sf.lit(1.5))).alias("features"),
    )
    made.write.parquet(str(folder))
    return spark.read.parquet(str(folder))


@pytest.mark.parametrize("dtype", ["float32", None])
def test_a_converter_writes_once_and_reads_each_sample(
    spark: SparkSession, tmp_path: Path, dtype: str | None
) -> None:
    """Below the folder of Petastorm's own setting; doubles become what dtype says."""
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}/cache")
    df = _frame(spark, tmp_path / "made")
    converter = make_spark_converter(df, dtype=dtype)
    same = make_spark_converter(df, dtype=dtype, parquet_row_group_size_bytes=1 << 20)
    elsewhere = pickle.loads(pickle.dumps(converter))
    with elsewhere.make_torch_dataloader(batch_size=16, num_epochs=1, workers_count=2) as loader:
        batches = list(loader)
    with converter.make_torch_dataloader(
        batch_size=16, data_loader_fn=BatchedDataLoader, cur_shard=0, shard_count=2
    ) as loader:
        shard = next(iter(loader))

    assert converter.cache_dir_url == same.cache_dir_url
    assert _ROWS == len(converter) == converter.dataset_size
    assert list(range(_ROWS)) == sorted(_ids(batches))
    wanted = torch.float64 if dtype is None else torch.float32
    assert {wanted} == {batches[0][name].dtype for name in ("half", "pair", "features")}
    for batch in batches:
        torch.testing.assert_close(batch["half"], (batch["id"] / 2).to(wanted))
        torch.testing.assert_close(batch["features"][:, 0], batch["id"].to(wanted))
    assert 16 == len(shard["id"])
    converter.delete()
    assert not list(tmp_path.glob("cache/*/headrace.json"))


def test_parquet_that_was_there_before_is_read_and_never_deleted(table: str) -> None:
    """Theirs removes the user's own folder."""
    converter = make_spark_converter(table)
    with converter.make_torch_dataloader(num_epochs=1, schema_fields=["id"]) as loader:
        assert list(range(_ROWS)) == sorted(_ids(loader))

    assert _ROWS == len(converter)
    with pytest.raises(ValueError, match="was not written by make_spark_converter"):
        converter.delete()


@pytest.mark.parametrize("arguments", [{"compression_codec": "brotli"}, {"dtype": "float16"}])
def test_a_converter_refuses_what_it_does_not_know(table: str, arguments: dict[str, Any]) -> None:
    """With what it does know."""
    with pytest.raises(ValueError, match="expected"):
        make_spark_converter(table, **arguments)
