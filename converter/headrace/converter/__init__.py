"""Spark jobs that write DataFrames as datasets."""

from headrace.converter._job import Progress
from headrace.converter._schema import Shape
from headrace.converter._write import DEFAULT_SHARD_BYTES, write_shards

__all__ = ["DEFAULT_SHARD_BYTES", "Progress", "Shape", "write_shards"]
