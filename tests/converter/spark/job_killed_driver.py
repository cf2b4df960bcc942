"""Convert so many partitions, and die between the last task and the commit."""

from __future__ import annotations

import os
import signal
import sys

from pyspark.sql import SparkSession

from headrace.converter import Progress, write_shards
from headrace.converter.tasks.merge import LEAST_SAVED


def main(url: str, partitions: int) -> None:
    """Never come back."""
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )

    def die(progress: Progress) -> None:
        # All tasks are done, those of a merge too, and the commit comes next.
        tasks = partitions + (partitions > LEAST_SAVED)
        if progress.sample_count == 1000 and progress.tasks_done == tasks:
            os.kill(os.getpid(), signal.SIGKILL)

    write_shards(spark.range(0, 1000, 1, partitions), url, progress=die)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
