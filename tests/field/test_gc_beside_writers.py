"""`headrace gc` beside writers: at any age, it leaves what they write, and breaks no version."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.converter import convert_files
from headrace.errors import CommitConflictError, HeadraceError, ObjectNotFoundError
from headrace.storage import (
    collect_garbage,
    compact,
    open_dataset,
    open_store,
    plan_gc,
    verify_blocks,
)
from headrace.storage.dataset.writer_notes import LIFE_S, WriterNotes, leave_note
from support.s3 import S3

_ROWS = 60


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> str:
    """A folder of datasets in each kind of store."""
    return str(tmp_path / "root") if request.param == "local" else s3.url("root")


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A file of `_ROWS` rows in two colours."""
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": range(_ROWS), "colour": ["red", "blue"] * (_ROWS // 2)}), path)
    return str(path)


def _collect(url: str, *, in_s: float = 1) -> None:
    """What `headrace gc --older-than 0` does, ``in_s`` from now."""
    store = open_store(url)
    collect_garbage(store, plan_gc(store, older_than_s=0, now_s=time.time() + in_s))


def _damage(url: str) -> list[object]:
    """What is wrong with the current version."""
    with open_dataset(url) as dataset:
        return list(verify_blocks(dataset, threads=2))


def _rows(url: str) -> int:
    with open_dataset(url) as dataset:
        return dataset.sample_count


def _files(url: str) -> set[str]:
    return set(open_store(url).list())


def test_an_append_keeps_its_shards(root: str, source: str) -> None:
    """Collections in the middle and right before the commit remove nothing of it."""
    convert_files(source, root, source_format="parquet")

    convert_files(
        source,
        root,
        source_format="parquet",
        mode="append",
        progress=lambda _: _collect(root),
    )

    assert (2 * _ROWS, []) == (_rows(root), _damage(root))
    assert [] == [name for name in _files(root) if "writing" in name]


def test_a_dataset_of_mosaic_keeps_its_shards(root: str, source: str) -> None:
    """The same holds for shards in MosaicML's format."""
    convert_files(source, root, source_format="parquet", format="mds")

    convert_files(
        source,
        root,
        source_format="parquet",
        format="mds",
        mode="append",
        progress=lambda _: _collect(root),
    )

    assert 2 * _ROWS == _rows(root)
    assert [] == [name for name in _files(root) if "writing" in name]


@pytest.mark.parametrize("splits", ["colour", {"red": 0.5, "blue": 0.5}])
def test_each_split_keeps_its_shards(
    root: str, source: str, splits: str | dict[str, float]
) -> None:
    """Also if a split is only known once a task has met it."""
    urls = [f"{root}/{name}" for name in ("red", "blue")]
    convert_files(source, root, source_format="parquet", splits=splits)

    def collect(_: object) -> None:
        for url in urls:
            _collect(url)

    convert_files(
        source, root, source_format="parquet", splits=splits, mode="append", progress=collect
    )

    assert 2 * _ROWS == sum(map(_rows, urls))
    assert [[], []] == [_damage(url) for url in urls]
    assert [] == [name for name in _files(root) if "writing" in name]


def test_a_compaction_keeps_its_shards(root: str, source: str) -> None:
    """It commits the shards that it wrote at first, though older versions go in the meantime."""
    convert_files(source, root, source_format="parquet")
    for _ in range(3):
        convert_files(source, root, source_format="parquet", mode="append")
    before = _files(root)

    report = compact(open_store(root), progress=lambda _: _collect(root))

    new = {name for name in _files(root) - before if name.startswith("shards/")}
    assert (True, 1, 4 * _ROWS, []) == (report.written, len(new), _rows(root), _damage(root))


def test_an_upload_in_parts_goes_on(s3: S3, source: str) -> None:
    """Parts of a shard that a living writer has sent are no leftovers."""
    url = s3.url("d")
    convert_files(source, url, source_format="parquet")
    store = open_store(url)
    writer = store.open_writer("shards/00000-0000-0123456789ab.arrow")
    writer.write(bytes(9 << 20))

    with WriterNotes("01234567") as notes:
        notes.leave(store)
        _collect(url)
        writer.close()

    assert "shards/00000-0000-0123456789ab.arrow" in _files(url)


def test_what_a_dead_writer_left_goes(root: str, source: str) -> None:
    """Its note is not renewed, so a quarter of an hour later its files and the note are removed."""
    convert_files(source, root, source_format="parquet")
    before = _files(root)
    store = open_store(root)
    leave_note(store, "01234567")
    store.write("shards/00000-0000-0123456789ab.arrow", b"left")

    _collect(root, in_s=LIFE_S - 60)
    soon = _files(root) - before
    _collect(root, in_s=LIFE_S + 60)

    assert 2 == len(soon)
    assert before == _files(root)


def test_a_writer_that_was_taken_for_dead_commits_nothing(root: str, source: str) -> None:
    """It was stopped for longer than its note lasts; it is told, and the dataset stays whole."""
    convert_files(source, root, source_format="parquet")
    before = _rows(root)

    with pytest.raises(ObjectNotFoundError, match="nothing was committed"):
        convert_files(
            source,
            root,
            source_format="parquet",
            mode="append",
            progress=lambda _: _collect(root, in_s=LIFE_S + 60),
        )

    assert (before, []) == (_rows(root), _damage(root))


def test_a_writer_whose_note_is_gone_is_told(root: str) -> None:
    """Also if its files are still there: a gc that is at work may be about to remove them."""
    store = open_store(root)
    with WriterNotes("01234567") as notes:
        notes.leave(store)
        notes.check()
        (note,) = store.list("manifests/")
        store.delete(note)

        for _ in range(2):
            with pytest.raises(CommitConflictError, match="could not renew its note"):
                notes.check()
    assert [] == list(store.list())


def _races(append: Callable[[], object], url: str, *, count: int) -> list[object]:
    """Append ``count`` times while another thread collects all the time; return what went wrong."""
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            try:
                _collect(url)
            except CommitConflictError:
                ended.wait(0.001)

    collector = threading.Thread(target=collect, name="test-gc", daemon=True)
    collector.start()
    wrong: list[object] = []
    try:
        for _ in range(count):
            try:
                append()
            except HeadraceError as error:
                wrong.append(error)
            wrong += _damage(url)
    finally:
        ended.set()
        collector.join(60)
    return wrong


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_no_race_breaks_an_append(source: str, tmp_path: Path, count: int) -> None:
    """Every append succeeds, and each version is whole."""
    url = str(tmp_path / "d")
    convert_files(source, url, source_format="parquet")

    def append() -> None:
        convert_files(source, url, source_format="parquet", mode="append", threads=1)

    assert [] == _races(append, url, count=count)
    assert (count + 1) * _ROWS == _rows(url)
