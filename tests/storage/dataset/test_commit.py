"""A dataset is there whole or not at all, whatever dies and whoever else commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    DatasetExistsError,
    NotADatasetError,
    UnsupportedColumnError,
)
from headrace.storage import (
    Mode,
    ObjectEntry,
    ObjectWriter,
    PendingUpload,
    ShardEntry,
    Store,
    Version,
    commit_dataset,
    list_versions,
    open_dataset,
    open_store,
    plan_gc,
)
from support.s3 import S3
from support.shards import numbered_batch, write_shard, write_shards_of
from support.threads import at_once


class _KilledError(BaseException):
    """Stands for a signal: nothing of ours catches it."""


class _Mortal:
    """A store whose user dies at the n-th change, before or after it takes effect."""

    def __init__(self, store: Store, *, changes: int, before: bool) -> None:
        self._store = store
        self._left = changes
        self._before = before
        self.url = store.url

    def read(self, name: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return self._store.read(name, offset=offset, length=length)

    def read_versioned(self, name: str) -> tuple[bytes, Version]:
        return self._store.read_versioned(name)

    def list(self, prefix: str = "") -> Iterator[str]:
        return self._store.list(prefix)

    def list_entries(self, prefix: str = "") -> Iterator[ObjectEntry]:
        return self._store.list_entries(prefix)

    def entry(self, name: str) -> ObjectEntry | None:
        return self._store.entry(name)

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        return self._store.read_entry(entry, offset=offset, length=length)

    def list_unfinished(self) -> Iterator[PendingUpload]:
        return self._store.list_unfinished()

    def discard(self, unfinished: PendingUpload) -> None:
        self._store.discard(unfinished)

    def write(self, name: str, content: bytes) -> None:
        with self._change():
            self._store.write(name, content)

    def write_if_absent(self, name: str, content: bytes) -> None:
        with self._change():
            self._store.write_if_absent(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        with self._change():
            self._store.write_if_unchanged(name, content, version)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def open_writer(self, name: str) -> ObjectWriter:
        return self._store.open_writer(name)

    def below(self, name: str) -> Store:
        return self._store.below(name)

    def close(self) -> None:
        self._store.close()

    def _change(self) -> _Mortal:
        return self

    def __enter__(self) -> None:
        self._left -= 1
        if self._left == 0 and self._before:
            raise _KilledError

    def __exit__(self, *exc: object) -> None:
        if self._left == 0:
            raise _KilledError


def _entries(store: Store, start: int, stop: int, name: str) -> list[ShardEntry]:
    return [write_shard(store, name, [numbered_batch(start, stop)])]


_SCHEMA = numbered_batch(0, 1).schema


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("changes", [1, 2])
def test_death_before_the_last_write_leaves_no_dataset(
    s3: S3, changes: int, *, before: bool
) -> None:
    """Killed at either manifest file, before or after it is written: there is no dataset."""
    store = open_store(s3.url("d"))
    entries = _entries(store, 0, 50, "a.arrow")

    with pytest.raises(_KilledError):
        commit_dataset(_Mortal(store, changes=changes, before=before), _SCHEMA, entries)

    with pytest.raises(NotADatasetError):
        open_dataset(s3.url("d"))
    assert commit_dataset(store, _SCHEMA, entries).sample_count == 50


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("changes", [1, 2, 3, 4])
def test_death_in_an_append_leaves_the_old_or_the_new(
    s3: S3, changes: int, *, before: bool
) -> None:
    """Killed anywhere in an append, the dataset is the old one until the last write, then new."""
    store = open_store(s3.url("d"))
    commit_dataset(store, _SCHEMA, _entries(store, 0, 50, "a.arrow"))
    more = _entries(store, 50, 80, "b.arrow")

    with pytest.raises(_KilledError):
        commit_dataset(_Mortal(store, changes=changes, before=before), _SCHEMA, more, mode="append")
    with open_dataset(s3.url("d")) as dataset:
        found = dataset.sample_count
        last = dataset.read_block(dataset.block_count - 1)["number"][-1].as_py()

    assert found == (80 if changes == 4 and not before else 50)
    assert last == found - 1


class _Meeting(_Mortal):
    """A store whose users wait for each other before the last write."""

    def __init__(self, store: Store, barrier: threading.Barrier) -> None:
        super().__init__(store, changes=0, before=False)
        self._barrier = barrier

    def write_if_absent(self, name: str, content: bytes) -> None:
        self._barrier.wait(60)
        self._store.write_if_absent(name, content)

    def write_if_unchanged(self, name: str, content: bytes, version: Version) -> None:
        self._barrier.wait(60)
        self._store.write_if_unchanged(name, content, version)

    def __exit__(self, *exc: object) -> None:
        pass


def _race(url: str, mode: Mode) -> list[str]:
    """Commit twice at once and return what happened to each."""
    barrier = threading.Barrier(2)
    results: list[str] = []

    def commit(number: int) -> None:
        store = open_store(url)
        entries = _entries(store, 50, 60 + number, f"racer-{number}.arrow")
        try:
            manifest = commit_dataset(_Meeting(store, barrier), _SCHEMA, entries, mode=mode)
            results.append(manifest.fingerprint)
        except CommitConflictError:
            results.append("told")

    at_once(commit, range(2))
    return sorted(results)


@pytest.mark.parametrize("mode", ["error", "append"])
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_of_two_commits_one_wins(
    s3: S3, tmp_path_factory: pytest.TempPathFactory, kind: str, mode: Mode
) -> None:
    """Two that commit at the same moment: one is current, the other is told, none is mixed."""
    url = s3.url("race") if kind == "s3" else str(tmp_path_factory.mktemp("race"))
    if mode == "append":
        write_shards_of(url, [numbered_batch(0, 50)])

    winner, told = _race(url, mode)

    with open_dataset(url) as dataset:
        assert (dataset.fingerprint, "told") == (winner, told)
        assert dataset.read_block(dataset.block_count - 1).num_rows > 0
    tables = [name for name in open_store(url).list("manifests/") if "-" in name]
    assert len(tables) == (4 if mode == "append" else 2)


def test_without_conditional_writes_two_never_both_win(s3: S3) -> None:
    """Fsspec stores refuse commits that meet; one of them may have won, never both."""
    url = f"memory://{s3.prefix}/race"

    results = _race(url, "error")

    assert results.count("told") >= 1


def test_a_lost_answer_is_no_conflict(s3: S3) -> None:
    """A commit whose last write succeeded unheard finds itself in the store and is content."""
    store = open_store(s3.url("d"))

    class Deaf(_Mortal):
        """Writes, then believes what a retry would be told."""

        def write_if_absent(self, name: str, content: bytes) -> None:
            self._store.write_if_absent(name, content)
            self._store.write_if_absent(name, content)

    manifest = commit_dataset(
        Deaf(store, changes=9, before=True), _SCHEMA, _entries(store, 0, 50, "a.arrow")
    )

    with open_dataset(s3.url("d")) as dataset:
        assert manifest.fingerprint == dataset.fingerprint


def test_a_commit_that_another_one_builds_on_stays_whole(tmp_path: Path) -> None:
    """A commit whose answer was lost, and on which another one landed, keeps its tables."""
    url = str(tmp_path)
    store = open_store(url)
    other = _entries(store, 50, 90, "b.arrow")

    class Deaf(_Mortal):
        """Writes, is too slow to hear of it, and then believes what a retry would be told."""

        def write_if_absent(self, name: str, content: bytes) -> None:
            self._store.write_if_absent(name, content)
            commit_dataset(self._store, _SCHEMA, other, mode="append")
            self._store.write_if_absent(name, content)

    manifest = commit_dataset(
        Deaf(store, changes=9, before=True), _SCHEMA, _entries(store, 0, 50, "a.arrow")
    )

    assert 2 == len(list_versions(url))
    with open_dataset(url, fingerprint=manifest.fingerprint) as dataset:
        assert (50, 50) == (manifest.sample_count, dataset.sample_count)
    assert () == plan_gc(store, keep=2, now_s=2**40).files


def test_an_existing_dataset_is_not_replaced_by_chance(s3: S3) -> None:
    """The default mode refuses where a dataset is, and says how to go on."""
    write_shards_of(s3.url("d"), [numbered_batch(0, 5)])

    with pytest.raises(DatasetExistsError, match="mode='append'"):
        write_shards_of(s3.url("d"), [numbered_batch(0, 5)], stem="other")


def test_appended_columns_must_match(s3: S3) -> None:
    """Other columns cannot be appended; both lists are in the message."""
    write_shards_of(s3.url("d"), [pa.RecordBatch.from_pydict({"a": [1]})])

    with pytest.raises(BadArgumentError, match=r"a: string, .* has a: int64"):
        write_shards_of(
            s3.url("d"), [pa.RecordBatch.from_pydict({"a": ["x"]})], mode="append", stem="b"
        )


def test_dictionaries_are_refused(s3: S3) -> None:
    """A type whose blocks would not stand alone cannot be committed."""
    store = open_store(s3.url("d"))
    schema = pa.schema([pa.field("x", pa.dictionary(pa.int8(), pa.string()))])

    with pytest.raises(UnsupportedColumnError, match="'x' has type dictionary"):
        commit_dataset(store, schema, [])


def test_a_manifest_says_what_it_is_in_a_line(s3: S3) -> None:
    """`write_shards` returns it at a prompt."""
    manifest = write_shards_of(s3.url("d"), [numbered_batch(0, 1500), numbered_batch(0, 50)])

    text = repr(manifest)

    assert f"Manifest({manifest.fingerprint}: 1,550 samples in 2 shards, " in text
    assert 1 == len(text.splitlines())
