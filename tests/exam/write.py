"""Store samples as a library does, and serve them where it has a service."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exam.job import shards
from exam.trainer import Log


def store(task: Mapping[str, Any], log: Log) -> None:
    """Write or append samples, or write documents."""
    entry = importlib.import_module(task["entry"])
    log.write(imported=True)
    do = {"append": "append", "write": "write", "documents": "write_documents"}[task["how"]]
    getattr(entry, do)(Path(task["folder"]), shards(task["first"], task["count"]))


def serve(task: Mapping[str, Any], log: Log) -> None:
    """Serve until the process is ended."""
    entry = importlib.import_module(task["entry"])
    log.write(imported=True)
    entry.serve(task["folders"], task["port"])
