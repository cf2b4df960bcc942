"""The file names that tell which kind of dataset a folder contains."""

from __future__ import annotations

POINTER_NAME = "headrace.json"
"""The file of a dataset in headrace's own format."""

MDS_INDEX_NAME = "index.json"
"""The file of a MosaicML Streaming dataset."""

DELTA_LOG_FOLDER = "_delta_log"
"""The folder of a Delta table."""

HUDI_FOLDER = ".hoodie"
"""The folder of a Hudi table's metadata."""

ICEBERG_ENDING = ".metadata.json"
"""The ending of the names of an Iceberg table's metadata files."""

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")


def is_parquet_name(name: str) -> bool:
    """Return whether a name is that of a Parquet file outside of hidden folders."""
    return name.lower().endswith(PARQUET_ENDINGS) and not is_hidden(name)


def table_format(name: str) -> str | None:
    """Return the table format whose metadata a file holds: ``Hudi``, ``Iceberg`` or none.

    The file may be at any depth, since a folder may contain tables.
    """
    *folders, file = name.split("/")
    if HUDI_FOLDER in folders:
        return "Hudi"
    if folders[-1:] == ["metadata"] and file.endswith(ICEBERG_ENDING):
        return "Iceberg"
    return None


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
