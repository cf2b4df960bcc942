"""The names by which a folder shows what kind of dataset lies in it."""

from __future__ import annotations

POINTER_NAME = "headrace.json"
"""Of a dataset in headrace's own format."""

MDS_INDEX_NAME = "index.json"
"""Of a dataset of MosaicML Streaming."""

DELTA_LOG_FOLDER = "_delta_log"
"""Of a Delta table."""

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")


def is_parquet_name(name: str) -> bool:
    """Tell whether a name is one of a Parquet file, in no folder that is hidden."""
    return name.lower().endswith(PARQUET_ENDINGS) and not is_hidden(name)


def is_hidden(name: str) -> bool:
    """Tell whether a file or a folder on its path starts with ``_`` or ``.``.

    A folder of a partition is never hidden: columns may start with ``_``.
    """
    *folders, file = name.split("/")
    return file[:1] in {"_", "."} or any(
        folder[:1] in {"_", "."} and "=" not in folder for folder in folders
    )


def is_tar_name(name: str) -> bool:
    """Tell whether a file is taken for a shard of a WebDataset."""
    return name.lower().endswith(".tar") and not name.rpartition("/")[2].startswith((".", "_"))
