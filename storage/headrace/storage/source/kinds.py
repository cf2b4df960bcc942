"""The file names that tell which kind of dataset a folder contains."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import NotADatasetError

POINTER_NAME = "headrace.json"
"""The file of a dataset in headrace's own format."""

MDS_INDEX_NAME = "index.json"
"""The file of a MosaicML Streaming dataset."""

DELTA_LOG_FOLDER = "_delta_log"
"""The folder of a Delta table."""

SINK_LOG_FOLDER = "_spark_metadata"
"""The folder of the log of a streaming sink of Spark."""

HUDI_FOLDER = ".hoodie"
"""The folder of a Hudi table's metadata."""

ICEBERG_ENDING = ".metadata.json"
"""The ending of the names of an Iceberg table's metadata files."""

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")

_HIVE_FILE = re.compile(r"\d{6}_\d+(_copy_\d+)?|bucket_\d{5}(_\d+)?")
_HIVE_FOLDER = re.compile(r"base_\d{7}(_v\d+)?|(delete_)?delta_\d{7}_\d{7}(_\d{4})?(_v\d+)?")


def refuse_absent(url: str, advice: str = "check the path") -> None:
    """Refuse a folder of this machine that does not exist, before anything is said of its files.

    Args:
        url: The URL of a dataset.
        advice: What to do, for the error.

    Raises:
        NotADatasetError: There is no such folder.
    """
    if "://" in url or Path(url).exists():
        return
    above = next(each for each in Path(url).parents if each.is_dir())
    raise NotADatasetError(
        f"there is no folder {url} on this machine, where {above} exists; {advice}", url=url
    )


def is_parquet_name(name: str) -> bool:
    """Return whether a name is that of a Parquet file outside of hidden folders."""
    return name.lower().endswith(PARQUET_ENDINGS) and not is_hidden(name)


def table_format(name: str) -> str | None:
    """Return the kind of table whose metadata a file holds, if folders alone do not tell its files.

    Hudi's and Iceberg's at any depth, since a folder may contain tables; the logs of Delta tables
    and of streaming sinks below the folder; and what Hive names the files of its tables.
    """
    *folders, file = name.split("/")
    if HUDI_FOLDER in folders:
        return "Hudi table"
    if folders[-1:] == ["metadata"] and file.endswith(ICEBERG_ENDING):
        return "Iceberg table"
    if DELTA_LOG_FOLDER in folders[1:]:
        return "Delta table"
    if SINK_LOG_FOLDER in folders[1:]:
        return "streaming sink of Spark"
    if any(_HIVE_FOLDER.fullmatch(folder) for folder in folders):
        return "transactional table of Hive"
    return "table of Hive" if _HIVE_FILE.fullmatch(file) and not is_hidden(name) else None


def is_hidden(name: str) -> bool:
    """Return whether a file or a folder on its path starts with ``_`` or ``.``.

    A folder of a partition is never hidden: columns may start with ``_``.
    """
    *folders, file = name.split("/")
    return file[:1] in {"_", "."} or any(
        folder[:1] in {"_", "."} and "=" not in folder for folder in folders
    )


def is_tar_name(name: str) -> bool:
    """Return whether a file counts as a shard of a WebDataset."""
    return name.lower().endswith(".tar") and not name.rpartition("/")[2].startswith((".", "_"))
