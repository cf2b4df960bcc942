"""Check the arguments of conversions, before Spark is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from headrace.arguments import (
    instance_or_none,
    mapping_or_none,
    number,
    one_of,
    shown,
    text,
    texts,
    whole,
    whole_or_none,
)
from headrace.converter.images import ImageOptions
from headrace.converter.samples.function import Function
from headrace.converter.text import TextOptions
from headrace.errors import BadArgumentError
from headrace.storage import Mode, SourceOptions, StoreOptions

_SEED_LIMIT = 1 << 63
_THREADS_LIMIT = 1 << 10

_COLUMNS = "a list of column names, or a mapping of names to new names"
_SPLITS = "a mapping of names to fractions, the name of a column, or None"

SourceFormat = Literal[
    "csv",
    "delta",
    "headrace",
    "huggingface",
    "iceberg",
    "images",
    "json",
    "mds",
    "parquet",
    "text",
    "unity",
    "webdataset",
]
"""The formats that `headrace.converter.convert_files` reads."""


def check_frame(df: object) -> None:
    """Refuse arguments that are not Spark DataFrames.

    Raises:
        BadArgumentError: The argument comes from another library, such as pandas.
    """
    if hasattr(df, "sparkSession") and hasattr(df, "mapInArrow"):
        return
    raise BadArgumentError(
        f"df is of type {type(df).__module__}.{type(df).__name__}; expected a Spark DataFrame: "
        "pass spark.createDataFrame(…) of it, or convert files with `headrace convert`",
        field="df",
    )


def columns_of(
    columns: Sequence[str] | Mapping[str, str] | None,
) -> Sequence[str] | Mapping[str, str] | None:
    """Return the columns of an argument; names from an iterator as a tuple.

    Raises:
        BadArgumentError: The argument is a single name, or an item is not a name.
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        texts("columns", list(columns), wanted=_COLUMNS)
        texts("columns", list(columns.values()), wanted=_COLUMNS)
        return columns
    names = texts("columns", columns, wanted=_COLUMNS)
    # In its given form, which later errors show.
    return columns if isinstance(columns, Sequence) else names


def check_seeds(*, shuffle_seed: object, split_seed: object) -> None:
    """Refuse seeds that are not whole numbers.

    Raises:
        BadArgumentError: A seed is not a whole number.
    """
    whole_or_none("shuffle_seed", shuffle_seed, low=-_SEED_LIMIT, high=_SEED_LIMIT)
    whole("split_seed", split_seed, low=-_SEED_LIMIT, high=_SEED_LIMIT)


def check_place(url: object, *, mode: object) -> None:
    """Refuse invalid targets, and invalid modes for existing datasets.

    Raises:
        BadArgumentError: The target or the mode is invalid.
    """
    text("url", url, wanted="the URL or the folder to write to, as a str")
    one_of("mode", mode, get_args(Mode))


def check_source(source: object, source_format: object, *, threads: object) -> None:
    """Refuse invalid sources and unknown formats.

    Raises:
        BadArgumentError: The source is invalid, or the format is unknown.
    """
    text("source", source, wanted="the URL or the folder to read from, as a str")
    one_of("source_format", source_format, get_args(SourceFormat))
    whole_or_none("threads", threads, low=1, high=_THREADS_LIMIT)


def check_spill(spill_folder: object) -> None:
    """Refuse invalid folders for temporary data.

    Raises:
        BadArgumentError: The argument is not a path.
    """
    if spill_folder is not None:
        text("spill_folder", spill_folder, wanted="a local folder, or None")


def check_splits(splits: object) -> None:
    """Refuse invalid splits.

    Raises:
        BadArgumentError: The argument is neither a name nor fractions by name.
    """
    if splits is None or (isinstance(splits, str) and splits):
        return
    mapping_or_none("splits", splits, wanted=_SPLITS)
    if not isinstance(splits, Mapping):
        return
    for name, fraction in splits.items():
        number(f"splits[{name!r}]", fraction, least=0, most=1)


def check_reading(*, source_options: object, text: object, images: object) -> None:
    """Refuse invalid options for reading sources.

    Raises:
        BadArgumentError: An option is invalid.
    """
    instance_or_none(
        "source_options", source_options, SourceOptions, wanted="SourceOptions(…), or None"
    )
    instance_or_none("text", text, TextOptions, wanted="TextOptions(…), or None")
    instance_or_none("images", images, ImageOptions, wanted="ImageOptions(…), or None")


def check_means(
    *,
    options: object,
    progress: object,
    function: object = None,
    left_out: object = None,
    notice: object = None,
) -> None:
    """Refuse invalid store options and functions.

    Raises:
        BadArgumentError: One of them is invalid.
    """
    instance_or_none("options", options, StoreOptions, wanted="StoreOptions(…), or None")
    instance_or_none("function", function, Function, wanted="Function(…), or None")
    for name, called in {"left_out": left_out, "notice": notice}.items():
        if called is not None and not callable(called):
            raise BadArgumentError(
                f"{name} is {shown(called)}; expected a function, or None", field=name
            )
    if progress is not None and progress != "bar" and not callable(progress):
        raise BadArgumentError(
            f"progress is {shown(progress)}; expected 'bar', a function, or None", field="progress"
        )
