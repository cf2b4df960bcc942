"""A dataset is not written where one of another kind is: one of them would be lost to sight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.converter import convert_files
from headrace.errors import DatasetExistsError
from headrace.storage import open_dataset, store_index
from storage.mds.mds_make import write_mds
from storage.webdataset.tar_files import write_tar
from support.datasets import write_dataset

_ROWS = pa.table({"id": range(10)})
_MODES: tuple[Literal["error", "overwrite", "append"], ...] = ("error", "overwrite", "append")


def _parquet(folder: Path) -> None:
    (folder / "day=1").mkdir(parents=True)
    pq.write_table(_ROWS, folder / "day=1" / "a.parquet")


def _delta(folder: Path) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    (folder / "_delta_log" / f"{0:020}.json").write_text("{}")


def _tars(folder: Path) -> None:
    folder.mkdir()
    write_tar(folder / "a.tar", {"a.txt": b"a"})


_KINDS: dict[str, Callable[[Path], object]] = {
    "parquet": _parquet,
    "delta": _delta,
    "webdataset": _tars,
    "mds": lambda folder: write_mds(folder, _ROWS),
    "arrow": lambda folder: write_dataset(str(folder), _ROWS, shard_samples=[10]),
}


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("written", ["arrow", "mds"])
@pytest.mark.parametrize("kind", list(_KINDS))
def test_another_kind_is_refused_in_every_mode(
    tmp_path: Path, kind: str, written: Literal["arrow", "mds"]
) -> None:
    """Before a sample is written, and what is there stays as it was."""
    pq.write_table(_ROWS, tmp_path / "source.parquet")
    target = tmp_path / "there"
    _KINDS[kind](target)
    before = _files(target)

    for mode in _MODES if kind != written else _MODES[:1]:
        with pytest.raises(DatasetExistsError, match=r"[Ww]rite elsewhere"):
            convert_files(
                str(tmp_path / "source.parquet"),
                str(target),
                source_format="parquet",
                format=written,
                mode=mode,
            )

    assert before == _files(target)


@pytest.mark.parametrize("kind", list(_KINDS))
def test_an_index_hides_nothing_but_its_source(tmp_path: Path, kind: str) -> None:
    """It may be stored beside the files that it is of, and beside no other dataset."""
    _parquet(tmp_path / "source")
    store_index(str(tmp_path / "source"), str(tmp_path / "source"))
    target = tmp_path / "there"
    _KINDS[kind](target)
    before = _files(target)

    with pytest.raises(DatasetExistsError):
        store_index(str(tmp_path / "source"), str(target))

    assert before == _files(target)
    with open_dataset(str(tmp_path / "source")) as dataset:
        assert 10 == dataset.sample_count


@pytest.mark.parametrize("written", ["arrow", "mds"])
def test_its_own_kind_is_replaced_and_added_to(
    tmp_path: Path, written: Literal["arrow", "mds"]
) -> None:
    """As before: overwrite, then append, beside files that are no dataset."""
    pq.write_table(_ROWS, tmp_path / "source.parquet")
    target = tmp_path / "there"
    target.mkdir()
    (target / "README.md").write_text("about")
    counts = []
    for mode in ("error", "overwrite", "append"):
        convert_files(
            str(tmp_path / "source.parquet"),
            str(target),
            source_format="parquet",
            format=written,
            mode=mode,
        )
        with open_dataset(str(target)) as dataset:
            counts.append(dataset.sample_count)

    assert [10, 10, 20] == counts
