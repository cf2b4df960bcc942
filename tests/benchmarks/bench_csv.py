"""Measure converting one large CSV file: its rate, its memory, and those of others beside it.

``python tests/benchmarks/bench_csv.py --gib 10`` writes a file of that size (numbers, dates, codes
with leading zeros, quoted texts with commas, doubled quotes and line ends), converts it by
``headrace convert``, and prints seconds, MiB of CSV a second, and the greatest resident memory of
the process. Beside it, each in a process of its own, and over the first ``--beside-gib`` of the
same rows: ``pyarrow.csv`` reading the file as a stream with types that it guesses of the first
block, and throwing the rows away; ``pyarrow.csv`` twice with all columns as text, which is what two
passes cost at least; and Spark's reader (``multiLine``, ``inferSchema``) with `write_shards`. The
ceiling is the second: headrace reads twice as well, and checks, settles types and writes shards
besides. ``--rounds 3`` takes turns three times, since only figures taken beside each other can be
compared on a machine that does other work. ``--folder`` says where the files lie; they are removed
at the end.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_BLOCK_ROWS = 200_000
_HEADER = "id,zip,day,delay,distance,carrier,note\n"

_HEADRACE = "from headrace.cli.main import main; main()"
_ARROW = """
import sys, pyarrow.csv as csv
text = len(sys.argv) > 2
import pyarrow as pa
names = open(sys.argv[1]).readline().strip().split(",")
for _ in range(1 + text):
    options = csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()) if text else {})
    rows = 0
    parse = csv.ParseOptions(newlines_in_values=True)
    for batch in csv.open_csv(sys.argv[1], parse_options=parse, convert_options=options):
        rows += batch.num_rows
print(rows)
"""
_SPARK = """
import os, sys
os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
from headrace.converter import write_shards
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").getOrCreate()
reader = spark.read.option("header", True).option("inferSchema", True).option("multiLine", True)
write_shards(reader.option("escape", '"').csv(sys.argv[1]), sys.argv[2])
spark.stop()
"""


def main() -> None:
    """Write, measure, print, remove."""
    arguments = _arguments()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        large = _write(folder / "large.csv", int(arguments.gib * (1 << 30)))
        beside = int(min(arguments.beside_gib, arguments.gib) * (1 << 30))
        small = _write(folder / "small.csv", beside)
        print(
            f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
            f"{large.stat().st_size / 2**30:.1f} GiB; beside it {beside / 2**30:.1f} GiB"
        )
        print(f"{'what':<34}{'seconds':>9}{'MiB/s':>9}{'peak MiB':>10}")
        tool = [sys.executable, "-c", _HEADRACE, "convert"]
        if arguments.gib > arguments.beside_gib:
            _measure("headrace, all of it", [*tool, str(large), str(folder / "out")], large)
        arrow = [sys.executable, "-c", _ARROW, str(small)]
        spark = [sys.executable, "-c", _SPARK, str(small), str(folder / "spark")]
        for _ in range(arguments.rounds):
            shutil.rmtree(folder / "out", ignore_errors=True)
            _measure("headrace", [*tool, str(small), str(folder / "out")], small)
            _measure("pyarrow.csv, guessing, not writing", arrow, small)
            _measure("pyarrow.csv, twice as text", [*arrow, "text"], small)
            if not arguments.without_spark:
                shutil.rmtree(folder / "spark", ignore_errors=True)
                _measure("Spark and write_shards", spark, small)
    finally:
        shutil.rmtree(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--beside-gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--without-spark", action="store_true")
    return parser.parse_args()


def _write(path: Path, size: int) -> Path:
    rng = random.Random(0)
    block = "".join(_row(number, rng) for number in range(_BLOCK_ROWS)).encode()
    with path.open("wb") as file:
        file.write(_HEADER.encode())
        while file.tell() < size:
            file.write(block)
    return path


def _row(number: int, rng: random.Random) -> str:
    note = rng.choice(["", '""', "on time", '"late, ""very"""', '"two\nlines"', "café"])
    return (
        f"{number},{rng.randrange(100_000):05d},20{rng.randrange(10, 25)}-0{rng.randrange(1, 10)}-1"
        f"{rng.randrange(10)},{round(rng.gauss(0, 30), 2)},{rng.randrange(5000)},"
        f"{rng.choice(['AA', 'DL', 'UA', ''])},{note}\n"
    )


def _measure(what: str, command: list[str], file: Path) -> None:
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.monotonic() - began
    if status:
        print(f"{what:<34}   failed with status {status}")
        return
    rate = file.stat().st_size / 2**20 / took
    print(f"{what:<34}{took:>9.1f}{rate:>9.1f}{usage.ru_maxrss / 1024:>10.0f}", flush=True)


if __name__ == "__main__":
    main()
