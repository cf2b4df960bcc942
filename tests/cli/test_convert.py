"""`headrace convert`: what it takes for what, its options, its exit codes."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc

from headrace.cli.inputs.formats import detect_format
from headrace.cli.inputs.spark import read_frame
from headrace.cli.show.progress import amount
from headrace.converter import Progress
from headrace.errors import BadArgumentError
from headrace.storage import open_dataset
from support.command import run
from support.datasets import small_table, write_dataset
from support.no_java import environment_without_any_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HUGGING_FACE = Path(__file__).parents[1] / "converter" / "golden" / "hugging_face"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a/x.csv", "csv"),
        ("a/x.csv.gz", "csv"),
        ("a/x.tsv", "csv"),
        ("a/x.tab.bz2", "csv"),
        ("a/x.ndjson", "json"),
        ("a/x.text", "text"),
        ("a/b/x.jsonl", "json"),
        ("a/x.orc", "orc"),
        ("a/y=1/x.parquet", "parquet"),
        ("a/_delta_log/0.json", "delta"),
        ("a/x.txt", "text"),
        ("a/cat/x.JPG", "images"),
        ("a/index.json", "mds"),
        ("a/headrace.json", "headrace"),
        ("a/dataset_dict.json", "huggingface"),
        ("a/state.json", "huggingface"),
        ("a/00.tar", "webdataset"),
    ],
)
def test_names_tell_the_format(tmp_path: Path, name: str, kind: str) -> None:
    """Of a folder by what is in it."""
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.touch()

    assert kind == detect_format(str(tmp_path / "a"))


def test_a_file_is_told_by_its_own_name(tmp_path: Path) -> None:
    """Whatever lies beside it; and what tells nothing is refused with the formats there are."""
    for name in ("a.csv", "b.parquet", "c.bin"):
        (tmp_path / name).touch()

    assert "parquet" == detect_format(str(tmp_path / "b.parquet"))
    assert "parquet" == detect_format("s3://bucket/b.parquet")
    (tmp_path / "d").mkdir()
    (tmp_path / "c.bin").rename(tmp_path / "d" / "c.bin")
    with pytest.raises(BadArgumentError, match="pass --format, one of csv, delta, headrace"):
        detect_format(str(tmp_path / "d"))
    with pytest.raises(BadArgumentError, match=r"the format of .*c.bin is not clear"):
        detect_format(str(tmp_path / "d" / "c.bin"))


def test_what_needs_no_spark_starts_none(tmp_path: Path) -> None:
    """Without Java on PATH: each split becomes a dataset, and the summary is JSON."""
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": ""}
    out = str(tmp_path / "out")
    done = run("convert", str(HUGGING_FACE), out, "--json", environment=environment)
    facts = json.loads(done.stdout)

    assert (0, "") == (done.returncode, done.stderr)
    assert (out, {"train": 7, "test": 3}) == (
        facts["url"],
        {name: split["sample_count"] for name, split in facts["splits"].items()},
    )
    assert f"{out}/train" == facts["splits"]["train"]["url"]


def test_progress_says_what_is_done_and_how_fast() -> None:
    """Tasks, shards, samples, bytes and a rate; before there are tasks, that there are none."""
    progress = Progress(
        tasks_done=1, tasks_total=4, shard_count=2, sample_count=3000, raw_bytes=6 << 20
    )
    none = Progress(tasks_done=0, tasks_total=0, shard_count=0, sample_count=0, raw_bytes=0)

    assert "1 of 4 tasks, 2 shards, 3,000 samples, 6 MiB, 3 MiB/s" == amount(progress, 2.0)
    assert "no task has started yet" == amount(none, 2.0)


def test_progress_of_the_first_pass_says_what_is_checked() -> None:
    """Bytes, of how many where that is known, and a rate."""
    begun = Progress(0, 0, 0, 0, 0, checked_bytes=3 << 20, unchecked_bytes=9 << 20)
    packed = Progress(0, 0, 0, 0, 0, checked_bytes=3 << 20)

    assert "3 MiB of 12 MiB, 1.5 MiB/s" == amount(begun, 2.0)
    assert "3 MiB, 1.5 MiB/s" == amount(packed, 2.0)


def test_options_choose_rename_cast_and_split(tmp_path: Path) -> None:
    """Two splits of one Parquet file, a line each, in MosaicML's format."""
    pq.write_table(pa.table({"x": range(100), "y": range(100)}), tmp_path / "t.parquet")
    options = ("--columns", "x=label,y", "--type", "label=int16", "--split", "train=0.9,val=0.1")
    done = run(
        "convert", str(tmp_path / "t.parquet"), str(tmp_path / "out"), *options, "--write", "mds"
    )

    assert (0, 2) == (done.returncode, done.stdout.count("\n"))
    with open_dataset(str(tmp_path / "out" / "train")) as dataset:
        assert {"label": pa.int16(), "y": pa.int64()} == {
            field.name: field.type for field in dataset.schema
        }
        assert 80 < dataset.sample_count < 100


CASES = [
    pytest.param(
        ("convert", "OWN", "X", "--shuffle-seed", "1", "--spill-folder", "/nowhere"),
        1,
        "the folder /nowhere for temporary data of a shuffle cannot be used",
        id="shuffle",
    ),
    pytest.param(("convert", "OWN", "X", "--master", "local"), 2, "SRC is headrace", id="master"),
    pytest.param(
        ("convert", "OWN", "X", "--split", "a=1", "--split-by", "b"), 2, "exclude", id="both"
    ),
    pytest.param(("convert", "OWN", "X", "--split", "a=most"), 2, "NAME=FRACTION", id="fraction"),
    pytest.param(("convert", "OWN", "X", "--split", "a=0.5"), 2, "the sum 1", id="sum"),
    pytest.param(("convert", "OWN", "X", "--type", "number"), 2, "NAME=VALUE", id="pair"),
    pytest.param(("convert", "OWN", "X", "--type", "number=colour"), 2, "colour", id="type"),
    pytest.param(("convert", "OWN", "X", "--shape", "grid=twoxtwo"), 2, "28x28", id="shape"),
    pytest.param(("convert", "OWN", "X", "--columns", "colour"), 2, "number, ratio", id="column"),
    pytest.param(("convert", "OWN", "X", "--compression", "br"), 2, "lz4, zstd", id="compression"),
    pytest.param(("convert", "OWN", "OWN"), 1, "already contains a dataset", id="exists"),
    pytest.param(("convert", "OWN", "X", "--format", "mds"), 1, "index.json", id="not mds"),
    pytest.param(("convert", "EMPTY", "X"), 2, "is empty", id="empty"),
]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 20 samples."""
    url = str(tmp_path_factory.mktemp("own") / "own")
    write_dataset(url, small_table(20), shard_samples=[20])
    return url


@pytest.mark.parametrize(("arguments", "code", "words"), CASES)
def test_bad_input_is_one_clear_line(
    arguments: tuple[str, ...], code: int, words: str, *, own: str, tmp_path: Path
) -> None:
    """Misuse exits with 2 and failure with 1, and nothing is written."""
    (tmp_path / "empty").mkdir()
    places = {"OWN": own, "X": str(tmp_path / "x"), "EMPTY": str(tmp_path / "empty")}

    done = run(*(places.get(part, part) for part in arguments))

    assert (code, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert words in done.stderr
    assert not (tmp_path / "x").exists()


def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    """ORC is read with Spark, which is told in a line."""
    orc.write_table(pa.table({"x": [1]}), str(tmp_path / "x.orc"))
    environment = environment_without_any_java(tmp_path / "none")
    done = run("convert", str(tmp_path / "x.orc"), str(tmp_path / "x"), environment=environment)

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert "Spark needs Java 17" in done.stderr


@pytest.mark.long
def test_spark_shuffles_and_splits_json(tmp_path: Path) -> None:
    """The way through Spark has the same options and the same summary."""
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.writelines(f'{{"x": {number}, "part": "{number % 2}"}}\n' for number in range(200))
    options = ("--master", "local[1]", "--shuffle-seed", "3", "--split-by", "part", "--json")
    source, target = str(tmp_path / "x.jsonl.gz"), str(tmp_path / "out")
    done = run("convert", source, target, *options, timeout_s=280)

    assert {"0": 100, "1": 100} == {
        name: split["sample_count"] for name, split in json.loads(done.stdout)["splits"].items()
    }
    with open_dataset(str(tmp_path / "out" / "1")) as dataset:
        found = [row["x"] for row in dataset.read_block(0).to_pylist()]
    assert list(range(1, 200, 2)) == sorted(found) != found


def test_spark_reads_the_other_formats(spark: SparkSession, tmp_path: Path) -> None:
    """ORC and Parquet, if Spark is to read them."""
    table = pa.table({"x": [1, 2]})
    orc.write_table(table, str(tmp_path / "x.orc"))
    pq.write_table(table, tmp_path / "x.parquet")

    def rows(name: str, kind: str) -> list[dict[str, object]]:
        frame = read_frame(spark, str(tmp_path / name), file_format=kind)
        return [row.asDict() for row in frame.collect()]

    assert [{"x": 1}, {"x": 2}] == rows("x.orc", "orc") == rows("x.parquet", "parquet")


def test_a_store_that_spark_cannot_read_is_named(spark: SparkSession) -> None:
    """Without the connector of a store: what is missing, and the ways around it."""
    with pytest.raises(BadArgumentError, match="lacks the connector"):
        read_frame(spark, "s3a://bucket/x.orc", file_format="orc")
