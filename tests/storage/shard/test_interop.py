"""Shards are plain Arrow files: other tools open them without us."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.storage import Compression
from support.shards import numbered_batch, write_shards_of

# polars and duckdb are skipped where they are not installed; the dev extra has them.
_COUNT = 300


@pytest.fixture(params=["lz4", "zstd", "none"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """One shard of several blocks, in each compression."""
    compression: Compression = request.param
    write_shards_of(str(tmp_path), [numbered_batch(0, _COUNT)], compression=compression)
    return tmp_path / "shards" / "shard-00000.arrow"


def _with_pyarrow(shard: Path) -> list[dict[str, Any]]:
    with pa.memory_map(str(shard)) as source:
        return pa.ipc.open_file(source).read_all().to_pylist()


def _with_pandas(shard: Path) -> list[dict[str, Any]]:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_feather(shard, dtype_backend="pyarrow")
    return pa.Table.from_pandas(frame, preserve_index=False).to_pylist()


def _with_polars(shard: Path) -> list[dict[str, Any]]:
    polars = pytest.importorskip("polars")
    rows: list[dict[str, Any]] = polars.read_ipc(shard).to_dicts()
    return rows


def _with_duckdb(shard: Path) -> list[dict[str, Any]]:
    duckdb = pytest.importorskip("duckdb")
    with pa.memory_map(str(shard)) as source:
        samples = pa.ipc.open_file(source).read_all()
        with duckdb.connect() as connection:
            connection.register("samples", samples)
            found = connection.sql("SELECT * FROM samples ORDER BY number").to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


@pytest.mark.parametrize("read", [_with_pyarrow, _with_pandas, _with_polars, _with_duckdb])
def test_other_tools_read_the_samples(
    shard: Path, read: Callable[[Path], list[dict[str, Any]]]
) -> None:
    """A shard opened by its path alone has the samples, in order, with their values."""
    wanted = numbered_batch(0, _COUNT).to_pylist()

    found = read(shard)

    assert [_plain(sample) for sample in wanted] == [_plain(sample) for sample in found]


def _plain(sample: dict[str, Any]) -> dict[str, Any]:
    """Tools differ in whether an array of numbers is a list, an array or a tuple."""
    return {
        name: list(value)
        if hasattr(value, "__len__") and not isinstance(value, str | bytes)
        else value
        for name, value in sample.items()
    }
