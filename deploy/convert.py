"""Convert a Parquet table on a cluster: what the SparkApplication of kubernetes/examples runs.

Two lines are about headrace; put your own DataFrame in between.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from headrace.converter import write_shards

source, url = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
frame = spark.read.parquet(source)
manifest = write_shards(frame, url, mode="overwrite")
print(f"{url}: {manifest.sample_count} samples in {manifest.shard_count} shards")
spark.stop()
