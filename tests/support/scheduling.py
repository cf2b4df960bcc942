"""Give the files of tests to processes, those that share a Spark session to one of them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler import LoadFileScheduling

_SPARK = "spark: SparkSession"


class SparkInOneProcess(LoadFileScheduling):  # type: ignore[misc]  # of a package without types
    """A file is run by one process, and all files whose tests take the session by the same one.

    Each process would otherwise start a JVM of its own and warm it up.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, _ = nodeid.partition("::")
        return _SPARK if _takes_spark(file) else file


@cache
def _takes_spark(file: str) -> bool:
    path = Path(__file__).parents[2] / file
    return path.is_file() and _SPARK in path.read_text(encoding="utf-8")
