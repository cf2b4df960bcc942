"""Programs for Petastorm and TensorFlow, with their imports changed.

tests/end_to_end/test_tensorflow_and_jax.py runs them where TensorFlow is installed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.compat.petastorm import TransformSpec, make_batch_reader
from headrace.compat.petastorm.spark import SparkDatasetConverter, make_spark_converter
from headrace.compat.petastorm.tf_utils import make_petastorm_dataset
from support.private import end_servers

tf: Any = pytest.importorskip("tensorflow")

_ROWS = 100


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Parquet with a column of each kind; the private servers of all tests end afterwards."""
    folder = tmp_path_factory.mktemp("table")
    runtime = tmp_path_factory.mktemp("run")
    runtime.chmod(0o700)
    ids = range(_ROWS)
    columns = {
        "id": pa.array(ids, pa.int64()),
        "small": pa.array([number % 7 for number in ids], pa.uint16()),
        "gap": pa.array([None if number % 3 == 0 else number for number in ids], pa.int32()),
        "text": pa.array([None if number % 3 == 0 else f"row {number}" for number in ids]),
        "flag": pa.array([number % 2 == 0 for number in ids]),
        "maybe": pa.array([None if number == 7 else number % 2 == 0 for number in ids]),
        "vector": pa.array([[number, 0.5] for number in ids], pa.list_(pa.float32(), 2)),
        "list": pa.array([[1] * (number % 3) for number in ids], pa.list_(pa.int32())),
    }
    pq.write_table(pa.table(columns), folder / "0.parquet", row_group_size=25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        yield f"file://{folder}"
    end_servers(runtime)


@pytest.fixture
def converter(url: str) -> SparkDatasetConverter:
    """Return a converter of what is there already."""
    return make_spark_converter(url)


def test_values_are_those_that_are_stored(converter: SparkDatasetConverter) -> None:
    """As namedtuples: null is NaN among numbers, and empty among texts."""
    columns = ["id", "small", "gap", "text", "flag", "vector"]
    with converter.make_tf_dataset(batch_size=8, num_epochs=1, schema_fields=columns) as dataset:
        batches = list(dataset)

    assert columns == list(batches[0]._fields)
    for batch in batches:
        ids = batch.id.numpy().tolist()
        assert [number % 7 for number in ids] == batch.small.numpy().tolist()
        for number, gap, text in zip(ids, batch.gap.numpy(), batch.text.numpy(), strict=True):
            assert math.isnan(gap) if number % 3 == 0 else number == gap
            assert (b"" if number % 3 == 0 else f"row {number}".encode()) == text
        assert [number % 2 == 0 for number in ids] == batch.flag.numpy().tolist()
        assert [[number, 0.5] for number in ids] == batch.vector.numpy().tolist()


def test_each_sample_comes_once_an_epoch_over_two_shards(
    converter: SparkDatasetConverter,
) -> None:
    """Counted over both, also where batches do not divide their samples."""
    seen: Counter[int] = Counter()
    for shard in range(2):
        with converter.make_tf_dataset(
            batch_size=8, num_epochs=3, schema_fields=["id"], cur_shard=shard, shard_count=2
        ) as dataset:
            seen.update(number for batch in dataset for number in batch.id.numpy().tolist())

    assert dict.fromkeys(range(_ROWS), 3) == seen


def test_without_an_end_keras_counts_the_steps(converter: SparkDatasetConverter) -> None:
    """As on their pages: a model is fitted for two epochs of twelve steps."""
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with converter.make_tf_dataset(batch_size=8, schema_fields=["id", "vector"]) as dataset:
        pairs = dataset.map(lambda batch: (batch.vector / _ROWS, batch.id))
        history = model.fit(pairs, steps_per_epoch=_ROWS // 8, epochs=2, shuffle=False, verbose=0)

    assert 2 == len(history.history["loss"])
    assert all(map(math.isfinite, history.history["loss"]))


def test_a_loop_begins_anew_and_goes_on_shuffled(converter: SparkDatasetConverter) -> None:
    """Every loop has the whole epoch, in an order of its own only with a queue or by the seed."""
    plain: dict[str, Any] = {"batch_size": 8, "num_epochs": 1, "schema_fields": ["id"]}
    with converter.make_tf_dataset(**plain, shuffle_row_groups=False) as dataset:
        for _ in range(2):
            assert [*range(_ROWS)] == [each for part in dataset for each in part.id.numpy()]
    with converter.make_tf_dataset(
        **plain, shuffle_row_groups=False, shuffling_queue_capacity=10
    ) as dataset:
        shuffled = [int(each) for part in dataset for each in part.id.numpy()]

    assert [*range(_ROWS)] == sorted(shuffled) != shuffled


def test_a_reader_becomes_a_dataset_and_a_spec_changes_it(url: str) -> None:
    """`make_petastorm_dataset`, after a function of frames."""
    spec = TransformSpec(
        lambda frame: frame.assign(twice=frame["id"] * 2), selected_fields=["twice"]
    )
    with make_batch_reader(
        url, schema_fields=["id"], num_epochs=1, transform_spec=spec, shuffle_row_groups=False
    ) as reader:
        rows = [each for part in make_petastorm_dataset(reader) for each in part.twice.numpy()]

    assert [*range(0, 2 * _ROWS, 2)] == rows


def test_what_tensorflow_cannot_say_is_refused_by_name(converter: SparkDatasetConverter) -> None:
    """Arrays of differing length at once; a null truth value when it comes."""
    with (
        pytest.raises(ValueError, match="'list' has arrays of differing length"),
        converter.make_tf_dataset(schema_fields=["list"]),
    ):
        pass
    with (
        converter.make_tf_dataset(num_epochs=1, schema_fields=["maybe"]) as dataset,
        pytest.raises(tf.errors.InvalidArgumentError, match="'maybe' has a null"),
    ):
        list(dataset)
