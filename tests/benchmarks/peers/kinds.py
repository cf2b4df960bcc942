"""Make the samples of each kind: the four of `headrace bench`, and photographs from a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.peers.samples import Column, Items, Samples
from headrace.bench import WORKLOADS

SAMPLE_COUNTS = {"rows": 262_144, "images": 4_096, "tokens": 16_384, "texts": 131_072}
"""42, 256, 128 and 50 MiB: all of them stay in the page cache, also as a file a sample."""

PHOTOS = "photos"
"""JPEG files, which every reader decodes, crops and flips."""

_SEED = 7
_PHOTO_BATCH = 256


def make(kind: str, *, share: float) -> Samples:
    """Return the samples of a kind, whole batches of them.

    Args:
        kind: One of `SAMPLE_COUNTS`.
        share: Of the usual number of samples, in (0, 1].
    """
    (workload,) = (each for each in WORKLOADS if each.name == kind)
    batches = max(4, int(SAMPLE_COUNTS[kind] * share) // workload.batch_size)
    count = batches * workload.batch_size
    table = workload.make(count, np.random.default_rng(_SEED)).combine_chunks()
    columns = {name: _column(table.column(name)) for name in table.column_names}
    return Samples(kind, workload.batch_size, count, columns)


def photographs(folder: Path) -> Samples:
    """Return the JPEG files of a folder and of those in it, whole batches of them.

    Raises:
        ValueError: It holds fewer than two batches.
    """
    found = sorted(folder.rglob("*.jpg"))
    count = len(found) // _PHOTO_BATCH * _PHOTO_BATCH
    if count < 2 * _PHOTO_BATCH:
        raise ValueError(f"{folder} holds {len(found)} .jpg files; give {2 * _PHOTO_BATCH} or more")
    files = [path.read_bytes() for path in found[:count]]
    values = np.frombuffer(b"".join(files), dtype=np.uint8)
    offsets = np.cumsum([0, *map(len, files)], dtype=np.int64)
    return Samples(PHOTOS, _PHOTO_BATCH, count, {"image": Items(values, offsets, is_text=False)})


def _column(chunks: pa.ChunkedArray[Any]) -> Column:
    array: Any = chunks.combine_chunks()
    if pa.types.is_fixed_size_list(array.type):
        values = array.flatten().to_numpy(zero_copy_only=True)
        rows: Column = values.reshape(len(array), -1)
        return rows
    if pa.types.is_primitive(array.type):
        numbers: Column = array.to_numpy(zero_copy_only=True)
        return numbers
    _, offsets, values = array.buffers()
    return Items(
        np.frombuffer(values, dtype=np.uint8),
        np.frombuffer(offsets, dtype=np.int32, count=len(array) + 1).astype(np.int64),
        is_text=pa.types.is_string(array.type),
    )
