"""A dataset in many small shards becomes one in few: the same samples, whatever happens."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    NotADatasetError,
    ShardCorruptError,
)
from headrace.storage import (
    Compaction,
    CompactOptions,
    GarbagePlan,
    Store,
    collect_garbage,
    compact,
    list_versions,
    open_dataset,
    open_store,
    plan_gc,
    verify_blocks,
    verify_shards,
)
from headrace.storage.care.entry_notes import decode_entries, encode_entries
from headrace.storage.care.gc import DEFAULT_OLDER_THAN_S
from headrace.storage.dataset.read_manifest import read_manifest
from headrace.storage.store.local.local_store import LocalStore
from support import killed_compaction
from support.killed_compaction import OPTIONS, SAMPLES, write_small_shards
from support.s3 import S3
from support.shards import numbered_batch, pointer_of, write_shard, write_shards_of


def _samples(url: str, fingerprint: str | None = None) -> list[dict[str, object]]:
    with open_dataset(url, fingerprint=fingerprint) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


WANTED = pa.Table.from_batches([numbered_batch(0, SAMPLES)]).to_pylist()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of a dataset in many small shards."""
    write_small_shards(str(tmp_path))
    return open_store(str(tmp_path))


def _interrupt(store: Store, *, after: int) -> None:
    """Interrupt a compaction when some shards are finished."""

    def stop(progress: Compaction) -> None:
        if progress.shards_done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(store, options=OPTIONS, threads=1, progress=stop)


def _check(url: str) -> None:
    """Check that all samples are there, and that nothing but the dataset stays."""
    assert WANTED == _samples(url)
    assert [] == [kind for kind in _collect(url) if kind not in {"json", "arrow"}]


def _collect(url: str) -> list[str]:
    """Remove all that no current version names; return what stays beside it and its shards."""
    store = open_store(url)
    collect_garbage(store, plan_gc(store, now_s=2**40))
    with open_dataset(url) as dataset:
        shards = dataset.shard_count
    left = [name for name in store.list() if not name.startswith("shards/")]
    assert shards == len(list(store.list("shards/")))
    return sorted(name.rpartition(".")[2] for name in left)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=25),
    shard_bytes=st.integers(4096, 20_000),
)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_samples_and_order_stay(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shard_bytes: int
) -> None:
    """Shards are as few as asked for and even; the version before opens; a second call rests."""
    url = str(tmp_path_factory.mktemp("compact"))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    batches = [
        numbered_batch(start, start + size) for start, size in zip(starts, sizes, strict=True)
    ]
    before = write_shards_of(url, batches, block_bytes=256)
    options = CompactOptions(shard_bytes=shard_bytes, block_bytes=256)
    store = open_store(url)
    report = compact(store, options=options)
    again = compact(store, options=options)

    assert pa.Table.from_batches(batches).to_pylist() == _samples(url)
    assert _samples(url, before.fingerprint) == _samples(url)
    assert not again.written
    assert again.fingerprint == report.fingerprint
    if report.written:
        manifest = read_manifest(store, pointer_of(store).current)
        assert manifest.schema == before.schema
        is_one_block = manifest.block_counts == 1
        assert ((manifest.raw_bytes <= shard_bytes) | is_one_block).all()
        assert (manifest.block_samples > 0).all()
        assert report.shard_count <= report.raw_bytes // (shard_bytes - 1024) + 1
    with open_dataset(url) as dataset:
        assert [] == list(verify_blocks(dataset, threads=2))
        assert [] == [check for check in verify_shards(dataset, threads=2) if check.problem]


def test_shards_are_full_but_the_last(tmp_path: Path) -> None:
    """All shards of the new version but the last lack less than a block of before."""
    url = str(tmp_path)
    write_shards_of(url, [numbered_batch(at, at + 10) for at in range(0, 2000, 10)])
    store = open_store(url)
    report = compact(store, options=CompactOptions(shard_bytes=16384, block_bytes=2048))
    manifest = read_manifest(store, pointer_of(store).current)

    assert 200 == report.shards_before
    assert report.shard_count == manifest.shard_count
    assert (manifest.raw_bytes[:-1] > 16384 - 1100).all()


@pytest.mark.parametrize(("kind", "step"), [("local", 5), ("s3", 15)])
def test_killed_anywhere_it_goes_on(s3: S3, tmp_path: Path, kind: str, step: int) -> None:
    """SIGKILL before an operation leaves the old version whole; the next call ends in the same."""
    root = s3.url("compacted") if kind == "s3" else str(tmp_path)
    done = subprocess.run(
        [sys.executable, killed_compaction.__file__, root, str(step)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(killed_compaction.__file__).parents[1])},
    )
    assert 0 == done.returncode, done.stderr
    last = int(done.stdout)

    fingerprints, taken = set(), []
    for fatal in range(1, last + 1, step):
        url = f"{root}/{fatal}"
        assert WANTED == _samples(url)
        report = compact(open_store(url), options=OPTIONS)
        _check(url)
        fingerprints.add(report.fingerprint)
        taken.append(report.shards_taken)
    assert 1 == len(fingerprints)
    assert max(taken) > 0
    assert last > 20


def test_notes_that_are_damaged_count_for_nothing(store: Store) -> None:
    """A note of other bytes, or whose shard is gone or cut off, has its shard written again."""
    _interrupt(store, after=3)
    notes = sorted(name for name in store.list("manifests/") if "compact-" in name)
    assert 3 == len(notes)
    first, second, third = (store.read(name) for name in notes)
    store.write(notes[0], first.replace(b"columns", b"Columns"))
    names = [entries[0].name for entries in map(decode_entries, (second, third)) if entries]
    store.delete(f"shards/{names[0]}")
    cut = store.read(f"shards/{names[1]}")[:-1]
    store.write(f"shards/{names[1]}", cut)
    report = compact(store, options=OPTIONS)

    assert 0 == report.shards_taken
    assert WANTED == _samples(store.url)


def _interrupted(store: Store) -> GarbagePlan:
    """Finish three shards two days ago; return the plan of a gc that finds them now."""
    _interrupt(store, after=3)
    before_s = time.time() - 2 * DEFAULT_OLDER_THAN_S
    for path in Path(store.url).rglob("*.*"):
        os.utime(path, (before_s, before_s))
    for path in (Path(store.url) / "manifests").iterdir():
        os.utime(path, (before_s, before_s))
    plan = plan_gc(store, now_s=time.time())
    assert 3 == sum(entry.name.startswith("shards/") for entry in plan.files)
    return plan


def test_gc_spares_what_a_compaction_has_taken(store: Store) -> None:
    """Old shards that a compaction takes stay, also in a gc that planned their removal before."""
    plan = _interrupted(store)
    later: list[GarbagePlan] = []

    def collect(_: Compaction) -> None:
        if not later:
            later.append(plan_gc(store, now_s=time.time()))
            collect_garbage(store, plan)

    report = compact(store, options=OPTIONS, threads=1, progress=collect)

    assert 3 == report.shards_taken
    assert [] == [entry for entry in later[0].files if entry.name.startswith("shards/")]
    _check(store.url)


def test_shards_that_gc_is_removing_are_not_taken(store: Store) -> None:
    """A gc that runs before a compaction has noted what it takes has these shards written again."""

    class Beaten(LocalStore):
        """Its user is too slow: a gc runs before it notes anything."""

        def write(self, name: str, content: bytes) -> None:
            if "writing-" in name and plans:
                collect_garbage(open_store(self.url), plans.pop())
            super().write(name, content)

    plans = [_interrupted(store)]
    report = compact(Beaten(store.url), options=OPTIONS, threads=1)

    assert (0, []) == (report.shards_taken, plans)
    _check(store.url)


def test_shards_that_vanish_are_written_again(store: Store) -> None:
    """Whatever removes a finished shard before the commit, the new version is whole."""
    before = set(store.list("shards/"))
    removed: list[str] = []

    def remove(progress: Compaction) -> None:
        if progress.shards_done == progress.shards_total and not removed:
            removed.append(max(set(store.list("shards/")) - before))
            store.delete(removed[0])

    report = compact(store, options=OPTIONS, progress=remove)

    assert report.written
    assert removed[0] not in set(store.list("shards/"))
    assert WANTED == _samples(store.url)


def test_shards_that_vanish_again_and_again_are_told(store: Store) -> None:
    """If somebody removes all that is finished, the call ends with what to do, and no change."""
    before = set(store.list("shards/"))

    def remove(progress: Compaction) -> None:
        for name in set(store.list("shards/")) - before:
            if progress.shards_done == progress.shards_total:
                store.delete(name)

    with pytest.raises(CommitConflictError, match="longer --older-than"):
        compact(store, options=OPTIONS, progress=remove)
    assert 1 == len(list_versions(store.url))


def test_shards_of_other_wishes_are_not_taken(store: Store) -> None:
    """What an interrupted call wrote with other sizes is left to gc."""
    _interrupt(store, after=2)
    other = compact(store, options=CompactOptions(shard_bytes=4096, block_bytes=1024))

    assert 0 == other.shards_taken
    assert [] == [kind for kind in _collect(store.url) if kind not in {"json", "arrow"}]


def test_a_commit_that_comes_between_stands(store: Store) -> None:
    """An append during the compaction wins; called again, the compaction has its samples too."""

    def append(progress: Compaction) -> None:
        if progress.shards_done == 1:
            write_shards_of(store.url, [numbered_batch(SAMPLES, 300)], mode="append", stem="more")

    with pytest.raises(CommitConflictError):
        compact(store, options=OPTIONS, threads=1, progress=append)
    wanted = pa.Table.from_batches([numbered_batch(0, 300)]).to_pylist()
    assert wanted == _samples(store.url)
    report = compact(store, options=OPTIONS)

    assert 300 == report.sample_count
    assert wanted == _samples(store.url)
    assert 3 == len(list_versions(store.url))


def test_a_damaged_block_changes_nothing(store: Store) -> None:
    """The error names the shard; the dataset is what it was, and no shard is half written."""
    content = bytearray(store.read("shards/shard-00007.arrow"))
    content[len(content) // 2] ^= 1
    store.write("shards/shard-00007.arrow", bytes(content))
    before = list_versions(store.url)

    with pytest.raises(ShardCorruptError, match="shard-00007"):
        compact(store, options=OPTIONS)
    assert before == list_versions(store.url)


def test_what_cannot_be_compacted_is_refused(tmp_path: Path) -> None:
    """An empty folder, and sizes that no shard may have."""
    with pytest.raises(NotADatasetError, match="convert the files there"):
        compact(open_store(str(tmp_path)))
    with pytest.raises(BadArgumentError, match="at least block_bytes"):
        CompactOptions(shard_bytes=1000, block_bytes=2000)
    with pytest.raises(BadArgumentError, match=r"^shard_bytes is 0, expected at least 1"):
        CompactOptions(shard_bytes=0)
    with pytest.raises(BadArgumentError, match=r"^block_bytes is 0"):
        CompactOptions(block_bytes=0)


@given(st.binary(max_size=40))
def test_hostile_notes_are_none(noise: bytes) -> None:
    """Bytes that nobody wrote as a note are none."""
    assert decode_entries(noise) is None


def test_a_note_says_all_of_a_shard(tmp_path: Path) -> None:
    """Encoding and decoding is the identity."""
    entry = write_shard(open_store(str(tmp_path)), "a.arrow", [numbered_batch(0, 100)])
    found = decode_entries(encode_entries([entry]))

    assert found is not None
    assert (entry.name, entry.stored_bytes, entry.columns) == (
        found[0].name,
        found[0].stored_bytes,
        found[0].columns,
    )
    assert entry.blocks.tobytes() == found[0].blocks.tobytes()
