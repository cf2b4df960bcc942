"""What tests of Parquet datasets share: files to read, and all samples of a dataset."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.storage.parquet import ParquetDataset


def table_of(numbers: Iterable[int]) -> pa.Table:
    """Return a table with a column of numbers and one of text, nulls in it."""
    values = list(numbers)
    texts = [None if number % 7 == 3 else f"sample {number}" for number in values]
    return pa.table({"number": pa.array(values, pa.int64()), "text": pa.array(texts, pa.string())})


def write_file(path: Path, table: pa.Table, *, row_group_size: int = 100) -> Path:
    """Write a file with checksums of its pages, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size, write_page_checksum=True)
    return path


def all_samples(dataset: ParquetDataset) -> pa.Table:
    """Return every sample, in order."""
    blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks, schema=dataset.schema)


def random_table(count: int, *, seed: int = 0) -> pa.Table:
    """Return a table of floats, small integers and text that repeats."""
    random = np.random.default_rng(seed)
    columns: dict[str, pa.Array[Any]] = {
        "x": pa.array(random.random(count)),
        "label": pa.array(random.integers(0, 10, count).astype(np.int32)),
        "word": pa.array([f"word {value}" for value in random.integers(0, 50, count)]),
    }
    return pa.table(columns)
