"""Each sample once, when an epoch goes on after kills with other ranks and another server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from storage.mds.mds_make import write_mds
from storage.parquet.parquet_cases import write_file
from storage.webdataset.tar_files import write_tar
from support.rescaling import rescaled_by_kills

_COUNT = 50


def _numbers(first: int, stop: int) -> pa.Table:
    return pa.table({"x": pa.array(range(first, stop), pa.int64())})


def _parquet(folder: Path) -> None:
    write_file(folder / "1.parquet", _numbers(0, 30), row_group_size=7)
    write_file(folder / "2.parquet", _numbers(30, _COUNT), row_group_size=20)


def _delta(folder: Path) -> None:
    write_deltalake(folder, _numbers(0, 30))
    write_deltalake(folder, _numbers(30, _COUNT), mode="append")


def _mds(folder: Path) -> None:
    write_mds(folder, _numbers(0, _COUNT))


def _tars(folder: Path) -> None:
    for first, stop in ((0, 30), (30, _COUNT)):
        members = {f"{number:04d}.x.cls": b"%d" % number for number in range(first, stop)}
        write_tar(folder / f"{first:02d}.tar", members)


_LAYOUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "parquet": (_parquet, "x"),
    "delta": (_delta, "x"),
    "mds": (_mds, "x"),
    "tars": (_tars, "x.cls"),
}


def test_each_sample_comes_once(tmp_path: Path) -> None:
    """A trainer of two ranks and its server get SIGKILL; three end the epoch by another server."""
    columns = {}
    for name, (write, column) in _LAYOUTS.items():
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        columns[str(folder)] = column

    seen = {url: sorted(numbers) for url, numbers in rescaled_by_kills(columns).items()}

    assert {url: list(range(_COUNT)) for url in columns} == seen
