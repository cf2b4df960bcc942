"""What is removed is needed by nobody, and a collection can end anywhere."""

from __future__ import annotations

import datetime as dt
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ConfigurationError,
    ManifestCorruptError,
    NotADatasetError,
)
from headrace.storage import (
    GarbagePlan,
    Store,
    collect_garbage,
    open_dataset,
    open_store,
    plan_gc,
    verify_blocks,
)
from headrace.storage.care.gc import split_versions
from headrace.storage.dataset.pointer import TableFile, VersionEntry
from headrace.storage.mds import MdsWriter, commit_mds
from headrace.storage.store.foreign.fsspec_store import entry_of
from support.s3 import S3
from support.shards import numbered_batch, write_shards_of

_DAY_S = 24 * 3600.0


@pytest.fixture(params=["local", "s3", "memory"])
def url(request: pytest.FixtureRequest, s3: S3, tmp_path: Path) -> str:
    """Each kind of store in turn: three versions, of which the last appends to the second."""
    urls = {"local": str(tmp_path / "d"), "s3": s3.url("d"), "memory": f"memory://{s3.prefix}/d"}
    url = urls[request.param]
    write_shards_of(url, [numbered_batch(0, 50)], stem="a")
    write_shards_of(url, [numbered_batch(0, 60)], stem="b", mode="overwrite")
    write_shards_of(url, [numbered_batch(60, 90)], stem="c", mode="append")
    return url


def _plan(store: Store, *, keep: int = 1, in_s: float = 2 * _DAY_S) -> GarbagePlan:
    """Plan as if it were ``in_s`` later."""
    return plan_gc(store, keep=keep, now_s=time.time() + in_s)


def test_old_versions_go_and_the_rest_is_whole(url: str) -> None:
    """One version stays with all its shards, also those that it took over from another."""
    store = open_store(url)
    collect_garbage(store, _plan(store))

    with open_dataset(url) as dataset:
        assert (90, []) == (dataset.sample_count, list(verify_blocks(dataset, threads=2)))
    assert ["shards/b-00000.arrow", "shards/c-00000.arrow"] == sorted(store.list("shards/"))
    assert 2 == len(list(store.list("manifests/")))
    assert () == _plan(store).files


def test_what_is_kept_can_be_opened(url: str) -> None:
    """Of three versions two stay, each by its fingerprint."""
    store = open_store(url)
    plan = _plan(store, keep=2)
    collect_garbage(store, plan)

    counts = []
    for version in plan.kept:
        with open_dataset(url, fingerprint=version.fingerprint) as dataset:
            counts.append((dataset.sample_count, list(verify_blocks(dataset, threads=2))))
    assert [(60, []), (90, [])] == counts
    with pytest.raises(NotADatasetError, match="no version"):
        open_dataset(url, fingerprint=plan.dropped[0].fingerprint)


def test_young_versions_and_files_stay(url: str) -> None:
    """A run may read a version replaced an hour ago, a conversion may not have committed."""
    store = open_store(url)
    store.write("shards/of-a-conversion.arrow", b"x")
    young, old = _plan(store, in_s=3600.0), _plan(store)

    assert (3, (), (), 1) == (len(young.kept), young.dropped, young.files, young.young_count)
    assert "shards/of-a-conversion.arrow" in {entry.name for entry in old.files}
    assert sum(entry.stored_bytes for entry in old.files) == old.stored_bytes


def test_a_commit_in_between_stops_the_collection(url: str) -> None:
    """What was planned before a commit is not done after it, and nothing was removed."""
    store = open_store(url)
    plans = (_plan(store), _plan(store, keep=3))
    write_shards_of(url, [numbered_batch(0, 9)], stem="d", mode="overwrite")
    before = sorted(store.list())

    for plan in plans:
        with pytest.raises(CommitConflictError):
            collect_garbage(store, plan)

    assert before == sorted(store.list())


def test_a_collection_that_died_is_finished_by_the_next(url: str) -> None:
    """Dead after any number of removals, all that is listed is whole, and the rest goes later."""
    store = open_store(url)
    plan = _plan(store)
    collect_garbage(store, replace(plan, files=()))
    for file in plan.files:
        assert file in _plan(store).files
        store.delete(file.name)
        with open_dataset(url) as dataset:
            assert [] == list(verify_blocks(dataset, threads=2))

    assert () == _plan(store).files
    assert 2 == len(list(store.list("shards/")))


def test_unfinished_uploads_go(s3: S3) -> None:
    """Parts that a killed writer sent to S3 are found by their age and discarded."""
    url = s3.url("d")
    write_shards_of(url, [numbered_batch(0, 5)])
    store = open_store(url)
    store.open_writer("shards/never-closed.arrow").write(bytes(9 << 20))

    young, plan = _plan(store, in_s=0.0), _plan(store)
    collect_garbage(store, plan)

    assert ((), "shards/never-closed.arrow") == (young.unfinished, plan.unfinished[0].name)
    assert [] == list(store.list_unfinished())


def test_hidden_files_of_dead_writers_go(tmp_path: Path) -> None:
    """On a local disk what a killed writer leaves is hidden, and goes by its age too."""
    url = str(tmp_path / "d")
    write_shards_of(url, [numbered_batch(0, 5)])
    store = open_store(url)
    (tmp_path / "d" / "shards" / f".never-closed.arrow.{'0' * 32}").write_bytes(b"some")

    plan = _plan(store)
    collect_garbage(store, plan)

    assert ["shards/never-closed.arrow"] == [unfinished.name for unfinished in plan.unfinished]
    assert ["shard-00000.arrow"] == [path.name for path in (tmp_path / "d" / "shards").iterdir()]


def test_marks_of_dead_commits_go_first(s3: S3) -> None:
    """In a store without conditional writes a dead commit's mark stops nobody for ever."""
    url = f"memory://{s3.prefix}/marked"
    write_shards_of(url, [numbered_batch(0, 5)], stem="a")
    write_shards_of(url, [numbered_batch(0, 6)], stem="b", mode="overwrite")
    store = open_store(url)
    store.write(f"commits/{'d' * 32}", b"headrace.json")

    collect_garbage(store, _plan(store))

    assert [] == list(store.list("commits/"))
    assert ["shards/b-00000.arrow"] == list(store.list("shards/"))


def test_files_of_others_stay(tmp_path: Path) -> None:
    """Beside a dataset or an index, its source may lie in folders that are named like ours."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 5)])
    store = open_store(str(tmp_path))
    for name in ("shards/0.tar", "manifests/a.txt", "packing/0.tar", "commits/0.parquet"):
        store.write(name, b"of somebody else")
    before = set(store.list())
    collect_garbage(store, _plan(store))

    assert before == set(store.list())


def test_a_damaged_manifest_stops_the_plan(tmp_path: Path) -> None:
    """What a version names cannot be told, so nothing is planned."""
    write_shards_of(str(tmp_path), [numbered_batch(0, 5)])
    table = next((tmp_path / "manifests").glob("*.shards.arrow"))
    table.write_bytes(table.read_bytes()[:-1])

    with pytest.raises(ManifestCorruptError):
        _plan(open_store(str(tmp_path)))


def test_without_a_dataset_nothing_is_planned(tmp_path: Path) -> None:
    """Without headrace.json nothing tells what is needed."""
    with pytest.raises(NotADatasetError, match="repair-manifest"):
        _plan(open_store(str(tmp_path)))


def test_bad_limits_are_refused(tmp_path: Path) -> None:
    """No version at all cannot be kept."""
    with pytest.raises(BadArgumentError, match="keep is 0"):
        _plan(open_store(str(tmp_path)), keep=0)


@pytest.mark.parametrize("stamp", [0, 0.0, dt.datetime(1970, 1, 1), "1970-01-01T00:00:00Z"])  # noqa: DTZ001 - some file systems give none
def test_times_of_all_kinds_are_read(stamp: object) -> None:
    """File systems give numbers, times with and without a zone, and texts."""
    assert 0.0 == entry_of("x", {"updated": stamp}).written_s


@pytest.mark.parametrize("state", [{}, {"mtime": "soon"}])
def test_a_store_without_times_is_refused(state: dict[str, object]) -> None:
    """Where the store does not say how old a file is, none can be told to be left over."""
    found = entry_of("x", state)

    with pytest.raises(ConfigurationError, match="does not say when"):
        _ = found.written_s


def _version(name: str, created: str) -> VersionEntry:
    table = TableFile(name, 1)
    return VersionEntry(name, created, 1, table, table)


def test_the_age_of_a_version_is_that_of_its_successor() -> None:
    """A version goes by when it was replaced; a time that cannot be read keeps it."""
    versions = [
        _version("a", "1970-01-01T00:00:10+00:00"),
        _version("b", "long ago"),
        _version("c", "1970-01-01T00:00:30+00:00"),
        _version("d", "1970-01-01T00:00:50+00:00"),
        _version("e", "1970-01-01T00:01:10+00:00"),
    ]

    kept, dropped = split_versions(versions, keep=1, cutoff_s=50.0)

    assert ["b", "c"] == [version.fingerprint for version in dropped]
    assert ["a", "d", "e"] == [version.fingerprint for version in kept]


def test_leftovers_of_mds_go_and_nothing_else(s3: S3) -> None:
    """Shards and uploads that tasks left go; named shards and strangers' files stay."""
    store = open_store(s3.url("mds"))
    batch = pa.record_batch([pa.array(range(50))], ["id"])
    writer = MdsWriter(store, batch.schema, folder="00000-0123456789ab0001")
    writer.append(batch)
    commit_mds(store, writer.close())
    named = set(store.list())
    left = {f"00001-0123456789ab0002/{name}" for name in ("shard.00000.mds", "index.json")}
    for name in left:
        store.write(name, b"left")
    store.write("notes.txt", b"stays")
    begun = store.open_writer("00002-0123456789ab0003/shard.00000.mds")
    begun.write(bytes(9 << 20))  # more than a part, so that the store has begun it
    plan = _plan(store)
    young = plan_gc(store, now_s=time.time())
    collect_garbage(store, plan)

    assert left == {entry.name for entry in plan.files}
    assert ["00002-0123456789ab0003/shard.00000.mds"] == [u.name for u in plan.unfinished]
    assert ((), 2) == (young.files, young.young_count)
    assert named | {"notes.txt"} == set(store.list())
    assert [] == list(store.list_unfinished())


def test_mds_that_changed_or_is_damaged_is_left_alone(tmp_path: Path) -> None:
    """A conversion came between, or the index says nothing: nothing is removed."""
    store = open_store(str(tmp_path))
    store.write("00001-0123456789ab0002/shard.00000.mds", b"left")
    store.write("index.json", b'{"version": 2, "shards": []}')
    plan = _plan(store)
    store.write("index.json", b'{"version": 2, "shards": [{}]}')
    with pytest.raises(CommitConflictError, match=r"index\.json"):
        collect_garbage(store, plan)
    store.write("index.json", b"[]")
    with pytest.raises(ManifestCorruptError):
        _plan(store)

    assert {"index.json", "00001-0123456789ab0002/shard.00000.mds"} == set(store.list())
