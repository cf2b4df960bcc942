"""Small MDS datasets for tests, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.storage import open_store
from headrace.storage.mds import MdsWriter, commit_mds


def texts(count: int, *, first: int = 0) -> pa.Table:
    """Return samples with a number and a text each."""
    numbers = np.arange(first, first + count, dtype=np.int64)
    return pa.table(
        {"number": numbers, "text": [f"sample {i} " + "x" * (i % 7) for i in numbers.tolist()]}
    )


def write_mds(root: Path, table: pa.Table, **options: Any) -> None:
    """Write a dataset; ``options`` are those of `MdsWriter`, with no hashes if none are named."""
    store = open_store(str(root))
    with MdsWriter(store, table.schema, **{"hashes": (), **options}) as writer:
        for batch in table.to_batches():
            writer.append(batch)
        commit_mds(store, writer.close(), mode="append")


def index_of(folder: Path) -> dict[str, Any]:
    """Return the index."""
    index: dict[str, Any] = json.loads((folder / "index.json").read_text())
    return index


def change_index(folder: Path, changes: Mapping[Sequence[str | int], object]) -> None:
    """Set values of the index, each at a path of keys and places."""
    index = index_of(folder)
    for path, value in changes.items():
        target: Any = index
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = value
    (folder / "index.json").write_text(json.dumps(index))


def take_descriptions_away(folder: Path) -> None:
    """Write plain shards again without what their headers say about columns, as nobody reads it."""
    changes: dict[Sequence[str | int], object] = {}
    for at, shard in enumerate(index_of(folder)["shards"]):
        path = folder / shard["raw_data"]["basename"]
        content, head = path.read_bytes(), 4 * (shard["samples"] + 2)
        words = np.frombuffer(content[4:head], "<u4")
        moved = (words - words[0] + head).astype("<u4").tobytes()
        path.write_bytes(content[:4] + moved + content[int(words[0]) :])
        changes["shards", at, "raw_data", "bytes"] = path.stat().st_size
    change_index(folder, changes)


def change_words(path: Path, changes: Mapping[int, int]) -> None:
    """Set little-endian 32-bit words of a file, each by its byte offset."""
    content = bytearray(path.read_bytes())
    for offset, word in changes.items():
        content[offset : offset + 4] = word.to_bytes(4, "little")
    path.write_bytes(content)
