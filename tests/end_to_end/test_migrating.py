"""What docs/migrating.md shows of ours, run in the order of the page; and its notebooks, both."""

from __future__ import annotations

import io
import json
import os
import re
import site
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pyspark.sql import functions as sf

from end_to_end.notebook_job import names_of, seen_by
from headrace.client import RemoteDataset
from headrace.storage import open_dataset
from storage.mds.mosaic_environment import mosaic
from support.environments import environment, put_below
from support.pages import ROOT, Block, blocks
from support.private import end_servers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def _page(language: str) -> list[Block]:
    return [block for block in blocks("docs/migrating.md") if block.language == language]


def _notebook(language: str, owner: str, *, of: str) -> Block:
    """Return a notebook of the page: theirs begins with its owner's name, and ours follows it."""
    found = _page(language)
    if language == "text":
        (theirs,) = (block for block in found if block.first == f"# {owner}")
        return theirs
    line = _notebook("text", of, of=of).line
    return next(block for block in found if block.first == "# headrace" and block.line > line)


@pytest.mark.long
def test_every_snippet_of_ours_runs(spark: SparkSession, bucket: Path) -> None:
    """In order, over real data, with the results that the page speaks of."""
    names = _prepare(spark, bucket)
    snippets = [block for block in _page("python") if block.first != "# headrace"]
    for block in snippets:
        text = block.text.replace("s3://bucket", str(bucket))
        text = "\n" * (block.line - 1) + text  # so that a failure names the page's line
        exec(compile(text, block.page, "exec"), names)  # noqa: S102 - our own page

    assert 10 == len(snippets)
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
    with pytest.raises(Exception, match="there is no folder"):
        open_dataset(names["conversion"].url)


_COUNT, _BATCH, _EPOCHS = 240, 32, 2


def _write_flowers(folder: Path) -> None:
    """Images that a model of one layer tells apart by their colours, with their labels."""
    contents = []
    for number in range(_COUNT):
        colours = [40, 40, 40]
        colours[number % 3] = 200 + number % 50
        content = io.BytesIO()
        Image.new("RGB", (32, 32), tuple(colours)).save(content, "JPEG")
        contents.append(content.getvalue())
    labels = pa.array([number % 3 for number in range(_COUNT)], pa.int32())
    folder.mkdir()
    pq.write_table(pa.table({"image": contents, "label": labels}), folder / "flowers.parquet")


def _judge(owner: str, seen: dict[str, Any]) -> None:
    """A notebook of MosaicML's counts what it learned from; Petastorm's judges by the others."""
    if owner == "Petastorm":
        assert 5 < seen["count"] < 60
        assert 0.9 < seen["accuracy"]
    else:
        counts = Counter(seen["labels"])
        assert _EPOCHS * (_COUNT // _BATCH) * _BATCH == counts.total()
        assert {0, 1, 2} == set(counts)
        assert max(counts.values()) <= _EPOCHS * _COUNT // 3


_OWNERS = ("MosaicML Streaming", "Petastorm")


@pytest.mark.long
@pytest.mark.parametrize("owner", _OWNERS)
def test_a_notebook_of_ours_learns(spark: SparkSession, bucket: Path, owner: str) -> None:
    """Each image of an epoch once, and a model that knows those it has not seen."""
    _write_flowers(bucket)
    names = names_of(spark, bucket)
    block = _notebook("python", "headrace", of=owner)
    names["RemoteDataset"] = RemoteDataset  # of a block before it

    exec(compile("\n" * (block.line - 1) + block.text, block.page, "exec"), names)  # noqa: S102

    _judge(owner, seen_by(names))


@pytest.mark.long
@pytest.mark.parametrize("owner", _OWNERS)
def test_a_notebook_of_theirs_learns_with_other_imports(
    spark: SparkSession, bucket: Path, owner: str
) -> None:
    """The same program, in which nothing but two imports is changed."""
    _write_flowers(bucket)
    names = names_of(spark, bucket)
    theirs = _notebook("text", owner, of=owner)
    changed = _by_compat(theirs)

    exec(compile("\n" * (theirs.line - 1) + changed, theirs.page, "exec"), names)  # noqa: S102 - our own page

    _judge(owner, seen_by(names))


@pytest.mark.parametrize("owner", _OWNERS)
def test_as_many_lines_change_as_the_page_says(owner: str) -> None:
    """Two by the other imports, and more for headrace's own words; docs/compat.md names both."""
    theirs = _notebook("text", owner, of=owner)
    ours = _notebook("python", "headrace", of=owner).text
    page = (ROOT / "docs" / "compat.md").read_text()

    found = _changed(theirs.text, _by_compat(theirs)), _changed(theirs.text, ours)

    assert {"MosaicML Streaming": (2, 14), "Petastorm": (2, 24)}[owner] == found
    assert "need 14 and 24 lines changed for that, and two lines, the imports, for this" in page


def _by_compat(theirs: Block) -> str:
    """Return the program with nothing but its imports changed."""
    return re.sub(
        r"^from (streaming|petastorm)\b",
        r"from headrace.compat.\1",
        theirs.text,
        flags=re.MULTILINE,
    )


def _changed(before: str, after: str) -> int:
    """Return how many lines of a program, but for comments, do not stay."""
    lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return sum(line[:1] == "-" and line[1:2] not in {"", "-", "#"} for line in lines)


# Petastorm calls what pyarrow 15 has no more, and pyarrow 14 wants NumPy 1.
_PETASTORM = (
    "petastorm==0.13.1",
    "pyspark==3.5.6",
    "pyarrow==14.0.2",
    "numpy==1.26.4",
    "pandas==2.1.4",
    "setuptools<70",
)
_BESIDE_MOSAIC = (
    "PIL",
    "pillow",
    "py4j",
    "pyspark",
    "pandas",
    "pyarrow",
    "pytz",
    "dateutil",
    "six",
)


def _theirs(owner: str, folder: Path) -> dict[str, str]:
    """Return an interpreter that has their package, and the variables that it needs."""
    if owner == "Petastorm":
        if sys.version_info >= (3, 13):
            pytest.skip("Petastorm needs pyarrow 14, which has no wheels for this Python")
        home = environment("petastorm", _PETASTORM)
        put_below(home)  # torch and Pillow
        return {"PYTHON": str(home / "bin" / "python")}
    links = folder / "links"
    links.mkdir()
    (own,) = {Path(path) for path in site.getsitepackages()}
    for name in _BESIDE_MOSAIC:
        for found in own.glob(f"{name}*"):
            (links / found.name).symlink_to(found)
    return {"PYTHON": str(mosaic().python), "PYTHONPATH": str(links)}


@pytest.mark.long
@pytest.mark.timeout(1500)  # of which most is for making the environments
@pytest.mark.parametrize("owner", _OWNERS)
def test_a_notebook_of_theirs_learns(bucket: Path, owner: str, tmp_path: Path) -> None:
    """With the real package, over the same images: what the page puts beside ours does the same."""
    _write_flowers(bucket)
    block = tmp_path / "block.py"
    block.write_text(_notebook("text", owner, of=owner).text)
    variables = _theirs(owner, tmp_path)
    done = subprocess.run(
        [variables["PYTHON"], Path(__file__).parent / "notebook_job.py", block, bucket],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-4000:]
    _judge(owner, json.loads(done.stdout.splitlines()[-1]))
