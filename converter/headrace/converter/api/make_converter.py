"""Convert a DataFrame once, and find the result again by what the DataFrame computes.

Contract of `make_converter`:

1. The same plan over the same files with the same settings is converted once for all drivers that
   share the cache, until it expires or is deleted. `headrace.converter.keys` defines what is equal.
2. If two drivers convert the same at the same time, both continue with one result.
3. An expired conversion is converted again; the next call of `make_converter` there removes it.
4. Failure or interrupt: as for `write_shards`; the cache never holds an incomplete conversion, or
   one of files that changed while they were read.
5. A DataFrame with unknown parts is converted by each call, unless the caller names them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.arguments import number, text
from headrace.converter.api.arguments import (
    check_frame,
    check_means,
    columns_of,
)
from headrace.converter.api.conversion import Conversion
from headrace.converter.api.conversions_folder import ConversionCache, ConversionRecord
from headrace.converter.api.write_shards import Settings, write_shards
from headrace.converter.columns.type_names import named_type
from headrace.converter.keys import ConversionKey, conversion_key, refuse_changed_files
from headrace.converter.plan.write_options import WriteOptions, write_options_of
from headrace.converter.progress.progress import Progress
from headrace.converter.samples.function import Function
from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ConfigurationError,
    NotADatasetError,
)
from headrace.storage import (
    StoreOptions,
    open_dataset,
    options_with_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LOG = logging.getLogger(__name__)
CACHE_SETTING = "spark.headrace.cacheDir"
"""The setting of Spark that names the cache if ``cache_dir`` does not."""


def make_converter(
    df: DataFrame,
    *,
    key: str | None = None,
    cache_dir: str | None = None,
    expire_after_s: float | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    function: Function | None = None,
    write: WriteOptions | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Conversion:
    """Convert ``df``, or find the conversion of an equal one.

    Two DataFrames are equal if they compute the same from the same, unchanged files with the same
    settings of Spark. If parts of the computation cannot be inspected (functions of users, RDDs,
    tables of other systems, data that Spark has cached, Spark Connect), each call converts, and a
    warning of the logger ``headrace.converter`` says why.

    Args:
        df: Any DataFrame; its partitions become shards.
        key: Your name for everything in ``df`` and ``function`` that cannot be inspected, such as
            ``"tokens-v3"``; change it whenever they compute something else. Parts that can be
            inspected are compared in any case.
        cache_dir: A folder or URL that all executors share, for any number of conversions. `None`
            for the setting ``spark.headrace.cacheDir``, or for Spark in local mode
            ``~/.cache/headrace/conversions``.
        expire_after_s: Seconds until the conversion expires; `None` for never. An existing equal
            conversion keeps its own time.
        columns: See `write_shards`.
        function: See `write_shards`. It cannot be inspected, so the conversion is found again only
            by ``key``.
        write: See `write_shards`.
        options: How to reach the cache; unset options are taken from the ``AWS_`` variables of the
            driver, and of each reader of the conversion.
        progress: See `write_shards`; not called if nothing is converted.

    Raises:
        BadArgumentError: ``key`` is empty, or a file changed while it was converted.
        ConfigurationError: There is no ``cache_dir``, and Spark is not in local mode.
        HeadraceError: See `write_shards`.
    """
    check_frame(df)
    if cache_dir is not None:
        text("cache_dir", cache_dir, wanted="a folder or a URL as a str, or None")
    if expire_after_s is not None:
        number("expire_after_s", expire_after_s, least=0)
    write = write_options_of(write)
    check_means(options=options, progress=progress, function=function)
    columns = columns_of(columns)
    if key is not None and not (isinstance(key, str) and key):
        raise BadArgumentError(f"key is {key!r}, expected a text, or None", field="key")
    now_s = time.time()
    place = cache_dir or _default_place(df.sparkSession)
    given = options or StoreOptions()
    shipped = options_with_environment(given)
    cache = ConversionCache(place, options=shipped)
    cache.remove_expired(now_s)
    named = conversion_key(
        df,
        _stored_as(columns, function, write),
        name=key,
        unknown=() if function is None else ("its function cannot be inspected",),
    )
    _warn_not_reusable(named.unknown)
    url = cache.url_of(named.text)
    record = cache.read(named.text)
    if record is not None and not record.is_claim and not record.is_expired(now_s):
        # If somebody has removed it, it is converted again.
        with contextlib.suppress(NotADatasetError):
            return _opened(url, key=named.text, place=place, options=given)
    if record is not None:
        cache.claim(named.text, now_s)
    settings: Settings = {
        "columns": columns,
        "function": function,
        "write": write,
        "mode": "overwrite",
        "options": shipped,
        "progress": progress,
    }
    _convert(df, named, cache, settings)
    expires_s = None if expire_after_s is None else now_s + expire_after_s
    cache.write(ConversionRecord(key=named.text, made_s=now_s, expires_s=expires_s))
    return _opened(url, key=named.text, place=place, options=given)


def _convert(df: DataFrame, named: ConversionKey, cache: ConversionCache, how: Settings) -> None:
    # A conflict means that somebody else has converted the same in the meantime.
    with contextlib.suppress(CommitConflictError):
        write_shards(df, cache.url_of(named.text), **how)
    try:
        refuse_changed_files(named)
    except BadArgumentError:
        cache.remove(named.text)
        raise


def _warn_not_reusable(unknown: Sequence[str]) -> None:
    if unknown:
        _LOG.warning(
            "later calls cannot reuse this conversion: %s; give make_converter a key= that names "
            "what it computes",
            "; ".join(unknown),
        )


def _stored_as(
    columns: Sequence[str] | Mapping[str, str] | None,
    function: Function | None,
    write: WriteOptions,
) -> dict[str, object]:
    """Return the settings that distinguish conversions of one DataFrame."""
    return {
        "columns": tuple(columns.items()) if isinstance(columns, Mapping) else columns,
        "types": {name: _type_bytes(name, kind) for name, kind in write.types.items()},
        "shapes": {
            name: sides if isinstance(sides, str) else tuple(int(side) for side in sides)
            for name, sides in write.shapes.items()
        },
        "formats": dict(write.formats),
        "classes": {name: tuple(names) for name, names in write.classes.items()},
        "function": _function_facts(function),
        "writing": asdict(write.writing("arrow")),
    }


def _function_facts(function: Function | None) -> tuple[str, str | bytes] | None:
    """Return what is known of a function: its input and its output."""
    if function is None:
        return None
    schema = function.schema
    if isinstance(schema, pa.Schema):
        return function.over, schema.serialize().to_pybytes()
    return function.over, schema if isinstance(schema, str) else schema.json()


def _type_bytes(name: str, kind: str | pa.DataType) -> bytes:
    # The type's text is ambiguous: names of fields in it may contain any characters.
    return pa.schema([pa.field("", named_type(kind, column=name))]).serialize().to_pybytes()


def _opened(url: str, *, key: str, place: str, options: StoreOptions) -> Conversion:
    with open_dataset(url, options=options) as dataset:
        return Conversion(
            url=dataset.url,
            fingerprint=dataset.fingerprint,
            sample_count=dataset.sample_count,
            key=key,
            cache_dir=place,
            options=options,
        )


def _default_place(spark: SparkSession) -> str:
    named = spark.conf.get(CACHE_SETTING, "")
    if named:
        return named
    master = spark.conf.get("spark.master", "")
    if master and master.startswith("local"):
        return str(Path.home() / ".cache" / "headrace" / "conversions")
    raise ConfigurationError(
        "make_converter needs a place for conversions that all executors share, since Spark's "
        f"master is {master or 'not known'}; give cache_dir='s3://bucket/conversions', or set "
        f"{CACHE_SETTING}",
        field="cache_dir",
    )
