"""Conversions with processes of their own: Connect, a cluster, a driver that dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.converter import write_shards
from headrace.converter.spark.ship_code import archive, code_digest
from headrace.errors import NotADatasetError
from headrace.storage import collect_garbage, open_dataset, open_store, plan_gc
from headrace.storage.dataset.writer_notes import LIFE_S
from support.bare_python import make_bare_python
from support.environments import environment
from support.spark_cluster import QUICK_START, spark_cluster

_FOLDER = Path(__file__).parent
_SPARK_35 = ("pyspark==3.5.7", "pyarrow==20.0.0", "numpy<2", "pandas<2.3", "xxhash", "setuptools")
_DEADLINE_S = 400.0  # a JVM takes a minute to start on a machine that is busy with others


def _run(
    script: str, *arguments: str, driver: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of this folder; its first argument is a folder, or what will be one."""
    own = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    # To files: a JVM that outlives its driver would hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        done = subprocess.run(
            [str(driver or sys.executable), str(_FOLDER / script), *arguments],
            stdout=out,
            stderr=error,
            timeout=_DEADLINE_S,
            check=False,
            env=own | variables,
            cwd=arguments[0] if Path(arguments[0]).is_dir() else None,
        )
        texts = []
        for stream in (out, error):
            stream.seek(0)
            texts.append(stream.read())
    return subprocess.CompletedProcess(done.args, done.returncode, texts[0], texts[1])


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert lines, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


@pytest.mark.long
@pytest.mark.timeout(500)
def test_spark_connect_converts_as_classic_spark_does(tmp_path: Path) -> None:
    """Splits, a shuffle, vectors, progress, and an error with its row, through a real server."""
    answer = _answer(_run("job_connect.py", str(tmp_path)))

    assert "connect" in answer["kind"]
    assert sum(answer["counts"].values()) == 1000
    done, total = answer["tasks"]
    assert 1 <= done == total
    assert len(answer["counts"]) <= answer["shards"]
    assert "ValueError: no seventeen" in answer["message"]
    assert "in fragile\n" in answer["message"]
    assert answer["row"] == "7"
    assert [1, 100] == answer["merged"]
    assert 3 == len(set(answer["keys"]))
    assert answer["keys"][2] == answer["keys"][3]
    with open_dataset(f"{tmp_path}/vectors") as dataset:
        assert [{"v": [1.0, 2.0]}] == dataset.read_block(0).to_pylist()
    assert list(open_store(f"{tmp_path}/failed").list()) == []


@pytest.mark.long
@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_sparks_own_writer_commits_versions(tmp_path: Path, kind: str) -> None:
    """Found without registration; tasks that fail or are repeated leave nothing, nor do jobs."""
    answer = _answer(_run("job_data_source.py", str(tmp_path), kind))

    assert kind == ("connect" if "connect" in answer["kind"] else "classic")
    assert [10, 1010, 1000, 1005] == answer["counts"]
    assert [*range(1000), *range(5)] == answer["rows"]
    assert [] == answer["left"]
    broken, wide, unknown, span = answer["errors"]
    assert "ValueError: broken for good" in broken
    assert "BadArgumentError: column 'id': sample" in wide
    assert "which uint8 cannot represent" in wide
    assert "headrace has no option 'compresion'; it has types, shapes" in unknown
    assert "INTERVAL" in span


def test_the_archive_is_all_that_executors_need(tmp_path: Path) -> None:
    """Python without headrace imports what tasks are made of from it, and knows its version."""
    bare = make_bare_python(tmp_path)
    ask = (
        "import sys; sys.path[:0] = sys.argv[1:]; import headrace.converter.tasks.shard_task; "
        "from headrace.converter.spark.ship_code import code_digest; print(code_digest())"
    )

    def answer(*paths: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(bare), "-c", ask, *paths],
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            check=False,
            cwd=tmp_path,
            env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
        )

    assert "No module named 'headrace'" in answer().stderr
    found = answer(str(archive()))
    assert code_digest() == found.stdout.strip(), found.stderr


@pytest.mark.parametrize("file_format", ["arrow", "mds"])
def test_a_task_holds_no_more_for_more_samples(tmp_path: Path, file_format: str) -> None:
    """Fifteen shards of 32 MiB take less than one of them beyond what three take."""
    answer = _answer(_run("job_memory.py", str(tmp_path), file_format))

    assert answer["more"] < 32 << 20


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_cluster_that_lacks_headrace_converts_exactly_once(tmp_path: Path) -> None:
    """The converter is sent along; a copied task and a lost executor leave each sample once."""
    own = {"PYSPARK_PYTHON": str(make_bare_python(tmp_path / "python")), **QUICK_START}
    with spark_cluster(tmp_path / "cluster", own) as master:
        variables = {**own, "PYTHONPATH": str(_FOLDER.parents[1])}
        done = _run("job_cluster.py", str(tmp_path), master, driver=None, **variables)
    answer = _answer(done)

    assert "headrace" in answer["imports"]
    for trouble in ("slow", "lost", "merge-slow", "merge-lost"):
        found = answer[trouble]
        assert 2 <= sum(attempt.startswith("0-") for attempt in found["attempts"]), found
        assert (True, True, 0) == (found["happened"], found["exact"], found["strays"]), found


@pytest.mark.timeout(500)
def test_workers_whose_python_lacks_a_package_are_told_apart(tmp_path: Path) -> None:
    """A driver in an environment that is not activated starts workers with another Python."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    answer = _answer(_run("job_bare_workers.py", str(tmp_path), PYSPARK_PYTHON=python))
    message = answer["message"]

    assert "py4j" not in answer["shown"]
    assert "org.apache" not in answer["shown"]
    assert "cannot import pyarrow" in message
    assert python in message
    assert "PYSPARK_PYTHON" in message
    assert not [path for path in (tmp_path / "dataset").rglob("*") if path.is_file()]


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_spark_35_converts_as_spark_4_does(tmp_path: Path) -> None:
    """Tables, fillers, splits, vectors, MDS, a cached conversion, and a function that raises."""
    python = environment("spark35", _SPARK_35) / "bin" / "python"
    roots = (str(_FOLDER.parents[2] / name) for name in ("proto", "storage", "converter"))
    done = _run(
        "job_spark35.py",
        str(tmp_path),
        driver=python,
        PYSPARK_PYTHON=str(python),
        PYTHONPATH=os.pathsep.join(roots),
    )
    answer = _answer(done)

    assert answer.pop("version").startswith("3.5.")
    assert "ValueError: no seventeen" in answer.pop("message")
    assert answer == {
        "table": True,
        "filled": True,
        "splits": 200,
        "vectors": [{"v": [1.0, 2.0]}],
        "mds": 100,
        "conversion": 10,
        "keys": [3],
        "row": "7",
        "left": [],
    }


@pytest.mark.timeout(500)
def test_a_driver_killed_before_its_commit_leaves_no_dataset(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its shards are seen by nobody, the job run again is whole, and gc sweeps them later."""
    url = str(tmp_path / "dataset")
    done = _run("job_killed_driver.py", url, "2")
    left = set(open_store(url).list("shards/"))
    with pytest.raises(NotADatasetError):
        open_dataset(url)
    again = write_shards(spark.range(0, 1000, 1, 2), url)
    store = open_store(url)
    plan = plan_gc(store, keep=1, older_than_s=0.0, now_s=time.time() + LIFE_S)
    collect_garbage(store, plan)

    assert -signal.SIGKILL == done.returncode, done.stderr[-4000:]
    assert len(left) == 2
    with open_dataset(url) as dataset:
        ids = [dataset.read_block(block).column("id").to_pylist() for block in range(2)]
    assert list(range(1000)) == ids[0] + ids[1]
    assert {f"shards/{name}" for name in again.names.to_pylist()} == set(store.list("shards/"))


@pytest.mark.long
@pytest.mark.timeout(500)
def test_a_driver_killed_after_a_merge_leaves_no_dataset(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Small shards and what they were merged into are seen by nobody, and gc sweeps both."""
    url = str(tmp_path / "dataset")
    done = _run("job_killed_driver.py", url, "12")
    left = set(open_store(url).list("shards/"))
    with pytest.raises(NotADatasetError):
        open_dataset(url)
    again = write_shards(spark.range(0, 1000, 1, 12), url)
    store = open_store(url)
    collect_garbage(store, plan_gc(store, keep=1, older_than_s=0.0, now_s=time.time() + LIFE_S))

    assert -signal.SIGKILL == done.returncode, done.stderr[-4000:]
    assert 13 == len(left)
    with open_dataset(url) as dataset:
        assert list(range(1000)) == dataset.read_block(0).column("id").to_pylist()
    assert {f"shards/{name}" for name in again.names.to_pylist()} == set(store.list("shards/"))
