"""Spark jobs that write DataFrames as datasets, and conversions of what lies in folders.

What takes Spark is imported when it is first asked for, so that files are converted without it.
"""

from __future__ import annotations

import headrace.errors  # noqa: F401 - first of all, for it refuses Windows

try:
    import pyarrow as pa  # noqa: F401 - first, for the message
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "headrace.converter needs pyarrow, which is not installed here: "
        "pip install 'headrace[converter]'",
        name="pyarrow",
    ) from error

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.converter._arguments import SourceFormat
from headrace.converter._convert import convert_files
from headrace.converter._function import Function, Over
from headrace.converter._progress import Progress
from headrace.converter._sinks import Format
from headrace.converter._splits import Splits
from headrace.converter._write_options import DEFAULT_SHARD_BYTES, Shape, WriteOptions
from headrace.converter.images import FilesLeftOut, ImageOptions

if TYPE_CHECKING:
    from headrace.converter._conversion import Conversion
    from headrace.converter._make_converter import CACHE_SETTING, make_converter
    from headrace.converter._write import Settings, write_shards

__all__ = [
    "CACHE_SETTING",
    "DEFAULT_SHARD_BYTES",
    "Conversion",
    "FilesLeftOut",
    "Format",
    "Function",
    "ImageOptions",
    "Over",
    "Progress",
    "Settings",
    "Shape",
    "SourceFormat",
    "Splits",
    "WriteOptions",
    "convert_files",
    "make_converter",
    "write_shards",
]

_WITH_SPARK = {
    "CACHE_SETTING": "_make_converter",
    "Conversion": "_conversion",
    "Settings": "_write",
    "make_converter": "_make_converter",
    "write_shards": "_write",
}


def __getattr__(name: str) -> object:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Before the first session, which whoever has installed the extra `java` makes like any other.
    from headrace.converter.spark_java import offer_java  # noqa: PLC0415 - a program too

    offer_java()
    return getattr(import_module(f"{__name__}.{_WITH_SPARK[name]}"), name)
