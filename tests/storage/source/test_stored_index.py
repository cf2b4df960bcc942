"""A stored index opens its source as the source itself does, and never a changed one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.errors import (
    BadArgumentError,
    CommitConflictError,
    ConfigurationError,
    DatasetExistsError,
    HeadraceError,
    ManifestCorruptError,
    NotADatasetError,
    ObjectNotFoundError,
    ShardCorruptError,
)
from headrace.storage import (
    SourceOptions,
    collect_garbage,
    open_dataset,
    open_store,
    plan_gc,
    repair_manifest,
    store_index,
)
from headrace.storage.mds import MdsWriter, commit_mds
from storage.webdataset.tar_files import tar_bytes
from support.s3 import S3
from support.shards import numbered_batch, write_shards_of

_TABLE = pa.table({"number": np.arange(300), "text": [f"sample {i}" for i in range(300)]})


def _write_mds(url: str) -> None:
    store = open_store(url)
    with MdsWriter(store, _TABLE.schema) as writer:
        for batch in _TABLE.to_batches():
            writer.append(batch)
        commit_mds(store, writer.close())


def _write_parquet(url: str) -> None:
    store = open_store(url)
    for part in range(3):
        sink = pa.BufferOutputStream()
        pq.write_table(_TABLE.slice(part * 100, 100), sink, row_group_size=40)
        store.write(f"part-{part}.parquet", sink.getvalue().to_pybytes())


def _write_webdataset(url: str) -> None:
    store = open_store(url)
    for part in range(3):
        rows = _TABLE.slice(part * 100, 100).to_pylist()
        members = {f"{row['number']:03d}.cls": str(row["number"]).encode() for row in rows}
        members |= {f"{row['number']:03d}.txt": row["text"].encode() for row in rows}
        store.write(f"part-{part}.tar", tar_bytes(dict(sorted(members.items()))))


_WRITERS: dict[str, Callable[[str], None]] = {
    "mds": _write_mds,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
}
_CHANGED = {"mds": "index.json", "parquet": "part-1.parquet", "webdataset": "part-1.tar"}
_COLUMNS = {"cls": "number", "txt": "text"}  # what they are called in tar files


@pytest.fixture(params=_WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    """Each source in turn."""
    return str(request.param)


@pytest.fixture
def source(kind: str, tmp_path: Path) -> Path:
    """A source of 300 samples on a local disk."""
    _WRITERS[kind](str(tmp_path / "source"))
    return tmp_path / "source"


def _samples(url: str) -> list[dict[str, object]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    table = pa.Table.from_batches(blocks)
    table = table.rename_columns([_COLUMNS.get(name, name) for name in table.column_names])
    samples: list[dict[str, object]] = table.select(_TABLE.column_names).to_pylist()
    return samples


def _index(source: Path, tmp_path: Path) -> str:
    store_index(str(source), str(tmp_path / "index"))
    return f"{tmp_path / 'index'} from {source}"


def test_an_index_opens_what_its_source_opens(kind: str, source: Path, tmp_path: Path) -> None:
    """The same samples in the same order under the same fingerprint."""
    pointer = store_index(str(source), str(tmp_path / "index"))

    url = f"{tmp_path / 'index'} from {source}"
    with open_dataset(str(source)) as one, open_dataset(url) as other:
        assert (one.fingerprint, one.schema) == (other.fingerprint, other.schema)
        assert (kind, one.fingerprint) == (pointer.source, pointer.fingerprint)
    assert _TABLE.to_pylist() == _samples(url)
    named = SourceOptions(index_of=str(source))
    open_dataset(str(tmp_path / "index"), source_options=named).close()


def test_in_a_bucket_too(kind: str, s3: S3) -> None:
    """The same with source and index in S3; an index beside what it is of finds it."""
    _WRITERS[kind](s3.url("source"))
    for url, named in (("index", f" from {s3.url('source')}"), ("source", "")):
        store_index(s3.url("source"), s3.url(url))

        assert _TABLE.to_pylist() == _samples(s3.url(url) + named)
    store_index(s3.url("source"), s3.url("source"))  # once more, over itself


def test_an_index_finds_what_lies_below_it(kind: str, tmp_path: Path, s3: S3) -> None:
    """On a disk and in a bucket; also a single file, if it is there."""
    for root in (str(tmp_path), s3.url("root")):
        _WRITERS[kind](f"{root}/data/of/mine")
        pointer = store_index(f"{root}/data/of/mine", root)

        assert "data/of/mine" == pointer.path
        assert _TABLE.to_pylist() == _samples(root)


def test_an_index_hides_no_other_files(tmp_path: Path) -> None:
    """Above its source there may be no files that would be hidden; a single file is no folder."""
    _write_parquet(str(tmp_path / "data"))
    pq.write_table(_TABLE, tmp_path / "other.parquet")
    with pytest.raises(DatasetExistsError, match=r"Parquet files \(other\.parquet\)"):
        store_index(str(tmp_path / "data"), str(tmp_path))
    (tmp_path / "other.parquet").rename(tmp_path / "other.txt")
    for part in (1, 2):
        (tmp_path / f"data/part-{part}.parquet").unlink()

    assert "data" == store_index(str(tmp_path / "data/part-0.parquet"), str(tmp_path)).path
    assert _TABLE.to_pylist()[:100] == _samples(str(tmp_path))


def test_one_parquet_file_has_an_index_too(tmp_path: Path) -> None:
    """A source may be a single file."""
    pq.write_table(_TABLE, tmp_path / "one.parquet")

    assert _TABLE.to_pylist() == _samples(_index(tmp_path / "one.parquet", tmp_path))


def test_a_changed_file_is_named(kind: str, source: Path, tmp_path: Path) -> None:
    """What has changed since is refused, by name, until the index is stored again."""
    url = _index(source, tmp_path)
    name = _CHANGED[kind]
    match kind:
        case "mds":
            text = (source / name).read_text()
            (source / name).write_text(text + " ")
        case "parquet":
            pq.write_table(_TABLE.slice(100, 90), source / name)
        case _:
            members = {f"{number}.cls": b"1" for number in range(90)}
            (source / name).write_bytes(tar_bytes(members))

    with pytest.raises(ShardCorruptError, match=rf"file {name} in .* has changed.*headrace index"):
        open_dataset(url)
    store_index(str(source), str(tmp_path / "index"))
    with open_dataset(url) as dataset:
        assert (300 if kind == "mds" else 290) == dataset.sample_count


def test_a_lost_file_is_named(kind: str, source: Path, tmp_path: Path) -> None:
    """What is gone is named."""
    url = _index(source, tmp_path)
    name = _CHANGED[kind]
    (source / name).unlink()

    with pytest.raises(ObjectNotFoundError, match=name):
        open_dataset(url)


@pytest.mark.parametrize("kind", ["parquet", "webdataset"], indirect=True)
def test_added_files_wait_for_the_next_index(kind: str, source: Path, tmp_path: Path) -> None:
    """A running job's dataset does not grow."""
    url = _index(source, tmp_path)
    added = _CHANGED[kind].replace("1", "9")
    shutil.copy(source / _CHANGED[kind], source / added)

    assert _TABLE.to_pylist() == _samples(url)


def _flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("place", [0, 7, 9, 15, 30, -1])
def test_a_damaged_index_is_refused(source: Path, tmp_path: Path, place: int) -> None:
    """A flipped bit anywhere in the index, or its end missing, is told with its place."""
    url = _index(source, tmp_path)
    [path] = (tmp_path / "index" / "manifests").iterdir()
    content = path.read_bytes()
    _flip(path, place)

    with pytest.raises(ManifestCorruptError, match=path.name):
        open_dataset(url)
    path.write_bytes(content[:-1])
    with pytest.raises(ManifestCorruptError, match=path.name):
        open_dataset(url)


def _forged(tmp_path: Path, changes: dict[str, object]) -> None:
    path = tmp_path / "index" / "headrace.json"
    pointer = json.loads(path.read_text())
    path.write_text(json.dumps({**pointer, **changes}))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"version": 4}, "version 4 of source .* a newer headrace may be able to read it"),
        ({"version": 1}, "version 1 of source"),
        ({"source": "lance"}, "source 'lance'"),
        (
            {"version": 2},
            "index of version 2, which contains the URL .* `headrace index SOURCE --to",
        ),
        ({"path": 7}, "path is 7"),
        ({"path": ".."}, "path '..'"),
        ({"path": "/etc"}, "path '/etc'"),
        ({"path": "file:///etc"}, "path 'file:///etc'"),
        ({"fingerprint": "0" * 32}, "fingerprint .* found, 0000"),
        ({"fingerprint": "../x"}, "not 32 hexadecimal digits"),
        ({"index": {"name": "../x", "stored_bytes": 1, "digest": "0" * 32}}, "'../x'"),
        ({"index": {"name": "x", "stored_bytes": -1, "digest": "0" * 32}}, "stored_bytes is -1"),
        ({"index": {"name": "x", "stored_bytes": 1, "digest": "0"}}, "digest '0'"),
        ({"index": []}, "index is not a JSON object"),
    ],
)
def test_a_pointer_that_lies_is_refused(
    source: Path, tmp_path: Path, changes: dict[str, object], found: str
) -> None:
    """Each key out of its bounds, and an index of another fingerprint."""
    url = _index(source, tmp_path)
    _forged(tmp_path, changes)

    with pytest.raises(ManifestCorruptError, match=found):
        open_dataset(url)


def test_an_index_does_not_say_where_a_source_elsewhere_is(source: Path, tmp_path: Path) -> None:
    """Whoever writes an index does not choose what is read: whoever opens it does."""
    _index(source, tmp_path)
    text = (tmp_path / "index" / "headrace.json").read_text()

    assert str(source) not in text
    with pytest.raises(ConfigurationError, match=r"name them: '.*/index from SOURCE'"):
        open_dataset(str(tmp_path / "index"))
    with pytest.raises(BadArgumentError, match="one index and one source"):
        open_dataset("a from b", source_options=SourceOptions(index_of="c"))


def test_an_index_that_names_its_source_is_repaired(source: Path, tmp_path: Path) -> None:
    """The command that the refusal gives stores it again, over the old one."""
    url = _index(source, tmp_path)
    _forged(tmp_path, {"version": 2, "url": str(source)})
    with pytest.raises(ManifestCorruptError, match="headrace index SOURCE --to INDEX"):
        open_dataset(url)
    store_index(str(source), str(tmp_path / "index"))

    assert _TABLE.to_pylist() == _samples(url)


def test_a_source_is_named_of_indexes_only(source: Path, tmp_path: Path) -> None:
    """A dataset of headrace's own shards, or of another layout, is not one of other files."""
    write_shards_of(str(tmp_path / "shards"), [numbered_batch(0, 5)])

    with pytest.raises(NotADatasetError, match="is not a stored index"):
        open_dataset(f"{tmp_path / 'shards'} from {source}")
    with pytest.raises(NotADatasetError, match=r"no headrace\.json"):
        open_dataset(f"{source} from {source}")


def test_the_two_kinds_do_not_replace_each_other(source: Path, tmp_path: Path) -> None:
    """Shards are not written over an index, nor an index over shards."""
    _index(source, tmp_path)
    write_shards_of(str(tmp_path / "shards"), [numbered_batch(0, 5)])

    with pytest.raises(DatasetExistsError, match="contains a stored index"):
        write_shards_of(str(tmp_path / "index"), [numbered_batch(0, 5)], mode="overwrite")
    with pytest.raises(DatasetExistsError, match="contains a dataset"):
        store_index(str(source), str(tmp_path / "shards"))
    with pytest.raises(NotADatasetError, match="stored index"):
        repair_manifest(open_store(str(tmp_path / "index")))


def test_old_indexes_are_collected(source: Path, tmp_path: Path) -> None:
    """The index that was replaced goes, the current one stays."""
    url = _index(source, tmp_path)
    store_index(str(source), str(tmp_path / "index"))
    store = open_store(str(tmp_path / "index"))
    plan = plan_gc(store, now_s=2**40)
    collect_garbage(store, plan)

    assert 1 == len(plan.files)
    assert _TABLE.to_pylist() == _samples(url)


def test_an_index_of_another_fingerprint_is_not_opened(source: Path, tmp_path: Path) -> None:
    """A job that asks for a version by name gets it or is told."""
    url = _index(source, tmp_path)
    with open_dataset(url) as dataset:
        fingerprint = dataset.fingerprint
    open_dataset(url, fingerprint=fingerprint).close()

    with pytest.raises(NotADatasetError, match=fingerprint):
        open_dataset(url, fingerprint="0" * 32)


def test_a_table_version_that_the_index_is_not_of(tmp_path: Path) -> None:
    """A version of a table that the index does not hold is not served for it."""
    _write_parquet(str(tmp_path / "source"))
    url = _index(tmp_path / "source", tmp_path)

    with pytest.raises(BadArgumentError, match="version 3 of the table"):
        open_dataset(url, source_options=SourceOptions(table_version=3))


def test_nothing_to_index(tmp_path: Path) -> None:
    """A folder without a source, one of our own shards, and one that is absent have no index."""
    write_shards_of(str(tmp_path / "shards"), [numbered_batch(0, 5)])
    (tmp_path / "nothing").mkdir()
    for name in ("nothing", "shards"):
        with pytest.raises(NotADatasetError, match=r"neither an MDS .* nor WebDataset tars"):
            store_index(str(tmp_path / name), str(tmp_path / "index"))
    with pytest.raises(NotADatasetError, match="there is no folder"):
        store_index(str(tmp_path / "absent"), str(tmp_path / "index"))

    assert not os.path.lexists(tmp_path / "index")


def test_of_two_that_store_an_index_one_is_told(tmp_path: Path) -> None:
    """The one that comes second finds headrace.json changed, and leaves nothing."""
    _write_parquet(str(tmp_path / "source"))
    _index(tmp_path / "source", tmp_path)
    url = str(tmp_path / "index")

    def other(done: int, total: int) -> None:
        if done == total:
            store_index(str(tmp_path / "source"), url)

    with pytest.raises(CommitConflictError):
        store_index(str(tmp_path / "source"), url, progress=other)

    assert 2 == len(list(open_store(url).list("manifests/")))


def test_moved_sources_are_told(source: Path, tmp_path: Path) -> None:
    """An index whose source is elsewhere now says where it looked."""
    url = _index(source, tmp_path)
    shutil.rmtree(source)

    with pytest.raises(HeadraceError, match=str(source)):
        open_dataset(url)
