"""Convert with workers whose Python has no packages, and print the error."""

from __future__ import annotations

import json
import sys
import traceback

from pyspark.sql import SparkSession

from headrace.converter import write_shards
from headrace.errors import ConfigurationError


def main(folder: str) -> None:
    """Fail."""
    spark = (
        SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    )
    try:
        write_shards(spark.range(10), f"{folder}/dataset")
    except ConfigurationError as error:
        shown = "".join(traceback.format_exception(error))
        sys.stdout.write(json.dumps({"message": error.message, "shown": shown}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
