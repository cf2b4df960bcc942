"""Refuse a folder or file inside of a table, whose log lies above it.

The files of a partition of a Delta table are all that were ever in it: replaced, deleted and
current ones. Only the log of the table tells them apart, and it is not in the partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

from headrace.errors import ConfigurationError, NotADatasetError, StoreRefusedError
from headrace.storage.source.kinds import DELTA_LOG_FOLDER, HUDI_FOLDER, SINK_LOG_FOLDER
from headrace.storage.store.open_store import open_store
from headrace.storage.store.options import StoreOptions

_ABOVE = 2  # folders above partitions: the table itself, and one above its folder of files
_LOGS = {
    DELTA_LOG_FOLDER: "a Delta table",
    SINK_LOG_FOLDER: "a streaming sink of Spark",
    HUDI_FOLDER: "a Hudi table",
}
_HUB = re.compile(r"datasets/[^/]+")  # of hf://, above the repository
_ICEBERG_FILES, _ICEBERG_LOG = "data", "metadata"


def refuse_parts_of_tables(url: str, *, options: StoreOptions) -> None:
    """Look for the logs of tables in the folders above a URL, at once.

    Args:
        url: A folder or a file.
        options: The options of its store.

    Raises:
        ConfigurationError: It is inside of a table; names the table.
        StoreUnavailableError: The store cannot be reached.
    """
    wanted = list(_possible_logs(url))
    with ThreadPoolExecutor(max(1, len(wanted)), "headrace-tables") as pool:
        found = pool.map(lambda log: _has_files(f"{log[0]}/{log[1]}", options), wanted)
        for (table, _, kind), is_there in zip(wanted, found, strict=True):
            if is_there:
                raise ConfigurationError(
                    f"{url} is inside of {kind}, {table}: only the log there tells its current "
                    f"files from replaced and deleted ones. Open {table}, or convert a part of it "
                    "with Spark and write_shards",
                    url=url,
                )


def _possible_logs(url: str) -> Iterator[tuple[str, str, str]]:
    """Yield a table that may enclose a URL, the folder of its log, and what kind it would be."""
    below, above = "", _parent(url)
    left = _ABOVE
    while above and left:
        name = below.rpartition("/")[2] if below else url.rstrip("/").rpartition("/")[2]
        for log, kind in _LOGS.items():
            yield above, log, kind
        if name == _ICEBERG_FILES:
            yield above, _ICEBERG_LOG, "an Iceberg table"
        left -= "=" not in name
        below, above = above, _parent(above)


def _parent(url: str) -> str:
    """Return the folder that a URL is in, empty above a bucket, a repository or a disk's root."""
    scheme, mark, rest = url.rstrip("/").partition("://")
    if not mark:
        path = Path(url).absolute()
        return "" if path.parent in {path, path.parent.parent} else str(path.parent)
    folder = rest.rpartition("/")[0]
    is_above = not folder or (scheme == "hf" and _HUB.fullmatch(folder))
    return "" if is_above else f"{scheme}://{folder}"


def _has_files(url: str, options: StoreOptions) -> bool:
    # Whoever may read a folder alone need not be able to list what is above it; and what names
    # nothing that can be opened is no log.
    with (
        suppress(ConfigurationError, NotADatasetError, StoreRefusedError),
        closing(open_store(url, options=options)) as store,
    ):
        return next(iter(store.list()), None) is not None
    return False
