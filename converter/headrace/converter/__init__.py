"""Spark jobs that write DataFrames as datasets, and conversions of what lies in folders."""

from headrace.converter._conversion import Conversion
from headrace.converter._convert import SourceFormat, convert_files
from headrace.converter._function import Function, Over
from headrace.converter._job import Progress
from headrace.converter._make_converter import CACHE_SETTING, make_converter
from headrace.converter._schema import Shape
from headrace.converter._sinks import Format
from headrace.converter._splits import Splits
from headrace.converter._write import DEFAULT_SHARD_BYTES, Settings, write_shards

__all__ = [
    "CACHE_SETTING",
    "DEFAULT_SHARD_BYTES",
    "Conversion",
    "Format",
    "Function",
    "Over",
    "Progress",
    "Settings",
    "Shape",
    "SourceFormat",
    "Splits",
    "convert_files",
    "make_converter",
    "write_shards",
]
