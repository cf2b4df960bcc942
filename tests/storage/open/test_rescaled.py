"""Each sample once, when an epoch goes on with other ranks and another server, in every layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from storage.mds.mds_make import write_mds
from storage.parquet.parquet_cases import write_file
from storage.webdataset.tar_files import write_tar
from support.rescaling import rescaled

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


@pytest.mark.parametrize(
    ("write", "column"), [(_parquet, "x"), (_delta, "x"), (_mds, "x"), (_tars, "x.cls")]
)
def test_each_sample_comes_once(tmp_path: Path, write: Callable[[Path], None], column: str) -> None:
    """Two ranks begin the epoch, three end it by a server that knows nothing of the first."""
    folder = tmp_path / "d"
    folder.mkdir()
    write(folder)

    assert list(range(_COUNT)) == sorted(rescaled(str(folder), column=column))
