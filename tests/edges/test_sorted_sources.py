"""Whoever converts samples that lie sorted hears of it once, and nobody else does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.converter import convert_files

_COUNT = 6000
_RANDOM = np.random.default_rng(1)
_COLUMNS: dict[str, tuple[Any, int]] = {
    "classes": (pa.array(np.arange(_COUNT) // 60), 100),
    "domains": (pa.array([("web" if i < 5000 else "books") for i in range(_COUNT)]), 2),
    "nearly": (pa.array(np.where(_RANDOM.random(_COUNT) < 0.005, 3, np.arange(_COUNT) // 600)), 10),
    "ids": (pa.array(np.arange(_COUNT)), 0),
    "random": (pa.array(_RANDOM.integers(0, 10, _COUNT)), 0),
    "constant": (pa.array(np.ones(_COUNT, np.int64)), 0),
    "periodic": (pa.array(np.arange(_COUNT) % 7), 0),
    "floats": (pa.array(np.repeat(np.arange(6.0), 1000)), 0),
    "dates": (pa.array(np.arange(_COUNT) // 60 * 10_000_000, pa.int32()).cast(pa.date32()), 100),
    "nulls": (pa.array([None if i < 3000 else 1 for i in range(_COUNT)], pa.int64()), 2),
}


@pytest.mark.parametrize("name", _COLUMNS)
def test_a_column_that_samples_are_sorted_by_is_named(tmp_path: Path, name: str) -> None:
    """With its values and what to do; over several files, read in several pieces."""
    column, values = _COLUMNS[name]
    for part, start in enumerate((0, 2500)):
        table = pa.table({name: column.slice(start, 2500 if part == 0 else None)})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=700)
    said: list[str] = []
    convert_files(
        str(tmp_path), str(tmp_path / "d"), source_format="parquet", notice=said.append, threads=2
    )

    assert (1 if values else 0) == len(said)
    if values:
        assert (
            f"the same value of '{name}', which has {values} values, are stored together" in said[0]
        )
        assert "--shuffle-seed" in said[0]
