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

from headrace.converter.api.arguments import SourceFormat
from headrace.converter.api.convert_files import convert_files
from headrace.converter.images import FilesLeftOut, ImageOptions
from headrace.converter.plan.write_options import Shape, WriteOptions
from headrace.converter.progress.progress import Progress
from headrace.converter.samples.function import Function, Over
from headrace.converter.samples.splits import Splits
from headrace.converter.tasks.sinks import Format
from headrace.storage import DEFAULT_SHARD_BYTES

if TYPE_CHECKING:
    from headrace.converter.api.conversion import Conversion
    from headrace.converter.api.make_converter import CACHE_SETTING, make_converter
    from headrace.converter.api.write_shards import Settings, write_shards

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
    "CACHE_SETTING": "api.make_converter",
    "Conversion": "api.conversion",
    "Settings": "api.write_shards",
    "make_converter": "api.make_converter",
    "write_shards": "api.write_shards",
}


def __getattr__(name: str) -> object:
    if name not in _WITH_SPARK:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Before the first session, so that users of the extra `java` need not do anything special.
    from headrace.converter.spark_java import offer_java  # noqa: PLC0415 - a program too

    offer_java()
    return getattr(import_module(f"{__name__}.{_WITH_SPARK[name]}"), name)
