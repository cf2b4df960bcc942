"""Tell from its files what a folder without a dataset was meant to be."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from headrace.errors import StoreRefusedError
from headrace.storage.source.kinds import MDS_INDEX_NAME, table_format
from headrace.storage.store.store import Store

_LISTED_NAMES = 2000  # arbitrary: two pages of S3's listing
_SHOWN = 9
_MDS_SHARD = re.compile(r"(.*/)?shard\.\d{5}\.(mds|json|csv|tsv|xsv)(\.\w+)*")
_LITDATA = re.compile(r"(.*/)?(chunk-\d+-\d+(\.\w+)*\.bin|\d+[.-]index\.json)")


def unfinished_kind(store: Store) -> str | None:
    """Return what a folder's files tell about it, and what to do, or `None` if nothing.

    Args:
        store: A folder in which no dataset was found.
    """
    try:
        names = list(islice(store.list(), _LISTED_NAMES))
    except StoreRefusedError:
        return None
    if any(_LITDATA.fullmatch(name) for name in names):
        return (
            "it contains chunks of a LitData dataset, which headrace does not read, and no merged "
            f"{MDS_INDEX_NAME}, so its writer has not finished either"
        )
    parts = sorted({name.split("/")[0] for name in names if _is_part(name)})
    if parts:
        shown = ", ".join(parts[:_SHOWN]) + (", …" if len(parts) > _SHOWN else "")
        return (
            f"these folders in it have an {MDS_INDEX_NAME} of MosaicML Streaming each: {shown}; if "
            "they are parts of one dataset, merge their indexes with "
            f"streaming.base.util.merge_index({store.url!r}), otherwise add the name of one to the "
            "URL"
        )
    if any(_MDS_SHARD.fullmatch(name) for name in names):
        return (
            f"it contains shards of MosaicML Streaming, but no {MDS_INDEX_NAME}, which is written "
            "last; wait for its writer, or write it again"
        )
    return _hive(names)


def _is_part(name: str) -> bool:
    folders = name.split("/")
    return len(folders) == 2 and folders[1] == MDS_INDEX_NAME  # noqa: PLR2004 - a folder, a file


def _hive(names: Sequence[str]) -> str | None:
    found = next((name for name in names if table_format(name) is not None), None)
    if found is None:
        return None
    return (
        f"it contains {found}, as a {table_format(found)} has; convert it with Spark: "
        'write_shards(spark.read.table(NAME), "s3://bucket/dataset")'
    )
