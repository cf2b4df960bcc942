"""Convert a DataFrame of many tiny partitions, and write it with ``df.write.parquet``.

``PYTHONPATH=tests python tests/benchmarks/bench_small_partitions.py [--rows 1000000]
[--partitions 10000] [--rounds 1]`` runs both by turns in one local session of Spark and prints the
seconds of each, their ratio, and how many shards and files there are. It ends with 1 where the
conversion takes more than 1.2 times what the files take.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from headrace.converter import write_shards

_MOST = 1.2


def main() -> None:
    """Measure by turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .getOrCreate()
    )
    taken: dict[str, list[float]] = {"shards": [], "parquet": []}
    with tempfile.TemporaryDirectory() as folder:
        write_shards(spark.range(100), f"{folder}/warm")  # imports, and a worker of Python
        spark.range(100).write.parquet(f"{folder}/warm-parquet")
        frame = spark.range(0, given.rows, 1, given.partitions)
        for number in range(given.rounds):
            began = time.perf_counter()
            manifest = write_shards(frame, f"{folder}/shards-{number}")
            taken["shards"].append(time.perf_counter() - began)
            began = time.perf_counter()
            frame.write.parquet(f"{folder}/parquet-{number}")
            taken["parquet"].append(time.perf_counter() - began)
        files = len(list(Path(folder, "parquet-0").glob("*.parquet")))
    spark.stop()
    shards, parquet = (statistics.median(taken[name]) for name in ("shards", "parquet"))
    print(
        f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; "
        f"{given.rows:,} rows in {given.partitions:,} partitions, {given.rounds} rounds"
    )
    print(f"write_shards      {shards:8.1f} s  {manifest.shard_count:,} shards")
    print(f"df.write.parquet  {parquet:8.1f} s  {files:,} files")
    print(f"ratio             {shards / parquet:8.2f}")
    if shards > _MOST * parquet:
        sys.exit(f"the conversion takes more than {_MOST} times what the files take")


if __name__ == "__main__":
    main()
