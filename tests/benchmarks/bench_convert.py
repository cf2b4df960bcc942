"""Measure converting DataFrames against Mosaic's ``dataframe_to_mds`` and ``df.write.parquet``.

``python tests/benchmarks/bench_convert.py --mosaic PYTHON`` prints, for a table of 2 million rows
and for 500,000 texts, the rows a second of `write_shards` and of the two others, and the ratios.
All run in one Spark session over the same DataFrame (Parquet files in the page cache), one after
another in each round, with everything at its default; medians of rounds. Partitions are those of
the files, four. ``PYTHON`` is an interpreter that has mosaicml-streaming, pyspark, pandas and what
`headrace[converter]` needs; the tests marked `long` leave one at ``.build/mosaic/bin/python``.
Without it Mosaic is left out. ``--data`` keeps the Parquet files in a folder, so that the measuring
can be done in pieces (``--case``; with ``--rounds 0`` they are only made). The last columns are the
greatest resident memory of a Python worker while `write_shards` ran and the size of a shard. The
ceiling of every case is the Parquet writer's rate: it stays inside the JVM. Images are measured by
``bench_convert_images.py``.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROOTS = ("proto", "storage", "converter")
_TABLE = {"id": "int64", "a": "float64", "b": "float64", "c": "float32", "n": "int32", "s": "str"}
_TEXTS = {"text": "str", "label": "int32"}
_POLL_S = 0.02


def main() -> None:
    """Start the interpreter that has all three, or measure."""
    arguments = _arguments()
    if arguments.mosaic and not arguments.inside:
        root = Path(__file__).parents[2]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(root / name) for name in _ROOTS),
            "PYSPARK_PYTHON": arguments.mosaic,
        }
        command = [arguments.mosaic, __file__, "--inside", *sys.argv[1:]]
        raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
    _measure_all(arguments)


def _measure_all(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(Path(folder), "local[2]")
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, Spark {spark.version}, load "
            f"{os.getloadavg()[0]:.1f}, medians of {arguments.rounds} rounds"
        )
        print(
            f"{'case':<8}{'rows':>10}{'headrace/s':>12}{'Parquet/s':>12}{'ratio':>7}"
            f"{'Mosaic/s':>12}{'ratio':>7}{'worker MiB':>12}{'shard MiB':>11}"
        )
        table = (_table(spark, arguments.rows), _TABLE)
        texts = (_texts(spark, arguments.texts), _TEXTS)
        for name, (frame, columns) in {"table": table, "texts": texts}.items():
            if arguments.case in {"", name}:
                source = Path(arguments.data or folder, name)
                if not (source / "_SUCCESS").exists():
                    frame.write.parquet(str(source))
                if arguments.rounds:
                    _measure(
                        name, spark.read.parquet(str(source)), columns, Path(folder), arguments
                    )
        spark.stop()


def _measure(
    name: str, frame: DataFrame, columns: dict[str, str], folder: Path, arguments: Any
) -> None:
    row_count = frame.count()
    memory: list[float] = []
    ways: dict[str, Callable[[str], object]] = {
        "headrace": lambda out: _headrace(frame, out, memory),
        "parquet": frame.write.parquet,
    }
    if arguments.mosaic:
        ways["mosaic"] = lambda out: _mosaic(frame, out, columns)
    spans: dict[str, list[float]] = {way: [] for way in ways}
    shard_bytes = 0
    for round_number in range(arguments.rounds + 1):
        for way, run in ways.items():
            out = folder / f"out-{way}"
            start = time.perf_counter()
            run(str(out))
            if round_number:  # the first one warms up workers and the JVM
                spans[way].append(time.perf_counter() - start)
            if way == "headrace":
                shard_bytes = max(file.stat().st_size for file in out.glob("shards/*"))
            shutil.rmtree(out)
    rates = {way: row_count / statistics.median(found) for way, found in spans.items()}
    theirs = rates.get("mosaic")
    print(
        f"{name:<8}{row_count:>10,}{rates['headrace']:>12,.0f}{rates['parquet']:>12,.0f}"
        f"{rates['headrace'] / rates['parquet']:>7.2f}"
        + (f"{theirs:>12,.0f}{rates['headrace'] / theirs:>7.1f}" if theirs else f"{'':>19}")
        + f"{max(memory):>12,.0f}{shard_bytes / 2**20:>11.1f}",
        flush=True,
    )


def _headrace(frame: DataFrame, out: str, memory: list[float]) -> None:
    from headrace.converter import write_shards  # noqa: PLC0415 - in the interpreter that has it

    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(done, memory), name="watch-memory")
    watcher.start()
    try:
        write_shards(frame, out)
    finally:
        done.set()
        watcher.join()


def _watch(done: threading.Event, memory: list[float]) -> None:
    """Note the greatest memory of a Python worker of this session."""
    while not done.wait(_POLL_S):
        for status in Path("/proc").glob("[0-9]*/status"):
            try:
                command = status.with_name("cmdline").read_bytes()
                if b"pyspark.daemon" not in command and b"pyspark/daemon" not in command:
                    continue
                text = status.read_text()
            except OSError:
                continue
            if _ancestor_is_ours(text):
                resident = text.split("VmRSS:")[1].split()[0] if "VmRSS:" in text else "0"
                memory.append(int(resident) / 1024)


def _ancestor_is_ours(status: str) -> bool:
    pid = int(status.split("PPid:")[1].split(maxsplit=1)[0])
    for _ in range(6):
        if pid == os.getpid():
            return True
        try:
            text = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return False
        pid = int(text.split("PPid:")[1].split()[0])
    return False


def _mosaic(frame: DataFrame, out: str, columns: dict[str, str]) -> None:
    from streaming.base.converters import (  # type: ignore[import-not-found] # noqa: PLC0415 - in an interpreter of its own
        dataframe_to_mds,
    )

    dataframe_to_mds(frame, merge_index=True, mds_kwargs={"out": out, "columns": columns})


def _table(spark: SparkSession, row_count: int) -> DataFrame:
    return spark.range(0, row_count, 1, 4).selectExpr(
        "id",
        "rand(1) as a",
        "randn(2) as b",
        "cast(rand(3) as float) as c",
        "cast(rand(4) * 1000 as int) as n",
        "concat('name ', cast(id % 5000 as string)) as s",
    )


def _texts(spark: SparkSession, row_count: int) -> DataFrame:
    """Make texts of 20 to 140 words of some 5,000."""
    words = "transform(sequence(1, 20 + cast(rand(5) * 120 as int)), i -> "
    word = "substr(sha2(cast(cast(rand(6) * 5000 as int) + i * 37 % 4999 as string), 256), 1, 6))"
    return spark.range(0, row_count, 1, 4).selectExpr(
        f"array_join({words}{word}, ' ') as text", "cast(id % 10 as int) as label"
    )


def spark_session(folder: Path, master: str) -> SparkSession:
    """Start Spark in this process, with its files below a folder."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - in the interpreter that measures

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    session = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(folder / "local"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--mosaic", help="interpreter that has mosaicml-streaming")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--texts", type=int, default=500_000)
    parser.add_argument("--data", default="", help="folder of the Parquet files, made once")
    parser.add_argument("--case", default="", choices=["", "table", "texts"])
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
