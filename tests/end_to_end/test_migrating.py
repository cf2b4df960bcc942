"""What docs/migrating.md shows of ours, run in the order of the page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from pyspark.sql import functions as sf

from headrace.storage import open_dataset
from support.private import end_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"
SAMPLES = 40


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of the page's bucket; private servers are ended afterwards."""
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    yield tmp_path / "bucket"
    end_servers(runtime)


def _prepare(spark: SparkSession, bucket: Path) -> dict[str, Any]:
    """Make what the page takes for granted."""
    df = spark.range(SAMPLES, numPartitions=2).select(
        sf.encode(sf.concat(sf.lit("image "), "id"), "utf-8").alias("image"),
        sf.col("id").cast("int").alias("label"),
        sf.concat(sf.lit("some words and number "), "id").alias("text"),
    )
    df.select(sf.col("label").alias("number")).write.parquet(str(bucket / "table.parquet"))
    matrices = []
    for number in range(12):
        content = io.BytesIO()
        np.save(content, np.full((2, 3), number, np.float32))
        matrices.append((number, bytearray(content.getvalue())))
    petastorm = spark.createDataFrame(matrices, "id long, matrix binary").coalesce(1)
    petastorm.write.parquet(str(bucket / "petastorm"))
    # As in a notebook: functions travel to Spark's workers by value.
    return {"spark": spark, "df": df, "__name__": "__main__"}


def _blocks(bucket: Path) -> Iterator[str]:
    text = PAGE.read_text().replace("s3://bucket", str(bucket))
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, match.start()) + 1
        yield "\n" * line + match[1]  # so that a failure names the page's line


@pytest.mark.long
def test_every_snippet_of_ours_runs(spark: SparkSession, bucket: Path) -> None:
    """In order, over real data, with the results that the page speaks of."""
    names = _prepare(spark, bucket)
    blocks = list(_blocks(bucket))
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)  # noqa: S102 - our own page

    assert 10 == len(blocks)
    assert [b"image 0", b"image 1"] == names["images"][:2]
    assert {0, 1} == set(names["datasets"].tolist())
    assert SAMPLES == names["count"]
    assert 16 == len(names["numbers"])
    assert (3, torch.Size([4, 2, 3])) == (len(names["matrices"]), names["matrices"][0].shape)
    assert (3, (4, 2, 3)) == (len(names["arrays"]), names["arrays"][0].shape)
    with open_dataset(str(bucket / "tokens")) as dataset:
        assert [4, 5, 3, 6, 1] == dataset.read_block(0).to_pylist()[0]["tokens"]
    with open_dataset(str(bucket / "numbers")) as dataset:
        assert 1000 == dataset.sample_count
    with pytest.raises(Exception, match="holds no dataset"):
        open_dataset(names["conversion"].url)
