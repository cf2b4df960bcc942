"""Check the arguments of conversions, before Spark is asked for anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from headrace.arguments import (
    instance_or_none,
    mapping_or_none,
    one_of,
    shown,
    text,
    texts,
    whole,
    whole_or_none,
)
from headrace.converter._function import Function
from headrace.errors import BadArgumentError
from headrace.storage import Mode, StoreOptions

_SEED_LIMIT = 1 << 63
_BYTES_LIMIT = 1 << 42

_COLUMNS = "a list of column names, or a mapping of names to new names"


def check_frame(df: object) -> None:
    """Refuse what is no DataFrame of Spark.

    Raises:
        BadArgumentError: It is of another library, such as pandas.
    """
    if hasattr(df, "sparkSession") and hasattr(df, "mapInArrow"):
        return
    raise BadArgumentError(
        f"df is of type {type(df).__module__}.{type(df).__name__}; wanted a DataFrame of Spark: "
        "pass spark.createDataFrame(…) of it, or convert files with `headrace convert`",
        field="df",
    )


def columns_of(
    columns: Sequence[str] | Mapping[str, str] | None,
) -> Sequence[str] | Mapping[str, str] | None:
    """Return the columns that an argument means; names of an iterator as a tuple.

    Raises:
        BadArgumentError: It is one name, or something in it is none.
    """
    if columns is None:
        return None
    if isinstance(columns, Mapping):
        texts("columns", list(columns), wanted=_COLUMNS)
        texts("columns", list(columns.values()), wanted=_COLUMNS)
        return columns
    names = texts("columns", columns, wanted=_COLUMNS)
    # As it was given, which is what later errors show.
    return columns if isinstance(columns, Sequence) else names


def check_declared(**declared: object) -> None:
    """Refuse what is no mapping by column: ``types``, ``shapes``, ``formats``.

    Raises:
        BadArgumentError: One is something else.
    """
    for field, value in declared.items():
        mapping_or_none(field, value, wanted="a mapping by the name of the column, or None")


def check_sizes(*, shard_bytes: object, block_bytes: object) -> None:
    """Refuse sizes that are no whole numbers of bytes.

    Raises:
        BadArgumentError: One is none.
    """
    whole("shard_bytes", shard_bytes, low=1, high=_BYTES_LIMIT)
    whole_or_none("block_bytes", block_bytes, low=1, high=_BYTES_LIMIT)


def check_seeds(*, shuffle_seed: object, split_seed: object) -> None:
    """Refuse seeds that are no whole numbers.

    Raises:
        BadArgumentError: One is none.
    """
    whole_or_none("shuffle_seed", shuffle_seed, low=-_SEED_LIMIT, high=_SEED_LIMIT)
    whole("split_seed", split_seed, low=-_SEED_LIMIT, high=_SEED_LIMIT)


def check_place(url: object, *, mode: object) -> None:
    """Refuse what is no place, or no way to treat what is there.

    Raises:
        BadArgumentError: One is none.
    """
    text("url", url, wanted="the URL or the folder to write to, as a str")
    one_of("mode", mode, get_args(Mode))


def check_means(*, options: object, progress: object, function: object) -> None:
    """Refuse what cannot be asked or called.

    Raises:
        BadArgumentError: One is something else.
    """
    instance_or_none("options", options, StoreOptions, wanted="StoreOptions(…), or None")
    instance_or_none("function", function, Function, wanted="Function(…), or None")
    if progress is not None and progress != "bar" and not callable(progress):
        raise BadArgumentError(
            f"progress is {shown(progress)}; wanted 'bar', a function, or None", field="progress"
        )
