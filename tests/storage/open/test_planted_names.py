"""Whoever may write a dataset chooses what is in it, and nothing else that its readers read.

Each test plants a name that leads to a copy of the dataset beside its folder, so a reader that
followed it would find what it expects. No file there may be opened.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.stored.row_counter import row_counter
from headrace.errors import HeadraceError, StoreRefusedError
from headrace.storage import (
    RowOptions,
    StoredLengths,
    index_packing,
    open_dataset,
    open_store,
    read_packing,
    store_index,
)
from headrace.storage.dataset.manifest import encode_shard_table
from headrace.storage.dataset.pointer import IndexPointer, Pointer, encode_pointer
from headrace.storage.dataset.publish import write_pointer
from headrace.storage.dataset.read_manifest import read_any_pointer, read_manifest
from headrace.storage.mds import stored_index as mds_index
from headrace.storage.packing.stored import digest_of
from headrace.storage.parquet import decode_index, encode_index
from headrace.storage.store.store import ObjectEntry
from headrace.storage.webdataset import stored_index as webdataset_index
from storage.mds.mds_make import change_index, write_mds
from storage.parquet.delta_log import add, struct_type, write_log
from storage.parquet.delta_log import field as column
from storage.webdataset.tar_files import tar_bytes
from support.shards import write_shards_of

_TABLE = pa.table({"x": pa.array([[at] * 3 for at in range(8)], pa.list_(pa.int64()))})
_FLAT = pa.table({"x": pa.array(range(8), pa.int64())})

_opened: list[str] = []
_is_watched = False


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _is_watched and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def watched() -> Iterator[None]:
    """Note what is opened while a test runs."""
    global _is_watched  # noqa: PLW0603 - a hook cannot be removed
    _opened.clear()
    _is_watched = True
    yield
    _is_watched = False


_NAMES: dict[str, Callable[[Path, str], str]] = {
    "01 above": lambda out, name: f"../{out.name}/{name}",
    "02 above from within": lambda out, name: f"shards/../../{out.name}/{name}",
    "03 absolute": lambda out, name: f"{out}/{name}",
    "04 a file's URL": lambda out, name: f"file://{out}/{name}",
    "05 a chain of file systems": lambda out, name: f"cached::file://{out}/{name}",
    "06 a chain without a host": lambda out, name: f"cached://::{out}/{name}",
    "07 a chain in a name": lambda out, name: f"x::{out}/{name}",
    "08 another store": lambda out, name: f"s3://bucket{out}/{name}",
    "09 memory": lambda out, name: f"memory://{out}/{name}",
    "10 escaped dots": lambda out, name: f"%2e%2e/{out.name}/{name}",
    "11 escaped slashes": lambda out, name: f"..%2f{out.name}%2f{name}",
    "12 backslashes": lambda out, name: f"..\\{out.name}\\{name}",
    "13 this folder": lambda out, name: f"./../{out.name}/{name}",
    "14 nothing between slashes": lambda out, name: f"/{out}//{name}",
    "15 an end before the end": lambda out, name: f"../{out.name}/{name}\0.arrow",
    "16 a line": lambda out, name: f"../{out.name}/{name}\n",
    "17 a home": lambda out, name: f"~/../..{out}/{name}",
    "18 very long": lambda out, name: "../" * 400 + f"{out.name}/{name}",
}


def _write_shards(root: Path) -> None:
    write_shards_of(str(root), _TABLE.to_batches())


def _write_parquet(root: Path) -> None:
    root.mkdir()
    pq.write_table(_FLAT, root / "a.parquet")


def _write_tar(root: Path) -> None:
    root.mkdir()
    (root / "a.tar").write_bytes(tar_bytes({f"{at}.cls": b"1" for at in range(8)}))


def _write_mds(root: Path) -> None:
    write_mds(root, _FLAT, compression="zstd:1")


def _write_packed(root: Path) -> None:
    _write_shards(root)
    index_packing(str(root), RowOptions(8), count_rows=row_counter())


def _write_delta(root: Path) -> None:
    _write_parquet(root)
    schema = struct_type([column("x", "long")])
    write_log(root, schema, [add(root, "a.parquet")], features=["deletionVectors"])


def _indexed(write: Callable[[Path], None]) -> Callable[[Path], None]:
    def written(root: Path) -> None:
        write(root)
        store_index(str(root), str(root))

    return written


def _change_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def _plant_pointer(root: Path, wanted: Callable[[str], str]) -> None:
    def change(content: Any) -> None:
        table = content["versions"][0]["shards"]
        table["name"] = wanted(table["name"])

    _change_json(root / "headrace.json", change)


def _plant_shard(root: Path, wanted: Callable[[str], str]) -> None:
    store = open_store(str(root))
    pointer, version = read_any_pointer(store)
    assert isinstance(pointer, Pointer)
    manifest = read_manifest(store, pointer.current)
    names = pa.array([wanted(str(name)) for name in manifest.names], pa.string())
    content = encode_shard_table(replace(manifest, names=names))
    store.write(pointer.current.shards.name, content)
    table = replace(pointer.current.shards, stored_bytes=len(content))
    changed = Pointer((replace(pointer.current, shards=table),))
    write_pointer(store, changed, replaced=version)


def _plant_path(root: Path, wanted: Callable[[str], str]) -> None:
    _change_json(root / "headrace.json", lambda content: content.update(path=wanted("")))


def _plant_url(root: Path, wanted: Callable[[str], str]) -> None:
    _change_json(root / "headrace.json", lambda top: top.update(version=2, url=wanted("")))


def _plant_index(root: Path, wanted: Callable[[str], str]) -> None:
    def change(content: Any) -> None:
        content["index"]["name"] = wanted(content["index"]["name"])

    _change_json(root / "headrace.json", change)


def _plant_in_index(recode: Callable[[bytes, Callable[[str], str]], bytes]) -> Any:
    def plant(root: Path, wanted: Callable[[str], str]) -> None:
        store = open_store(str(root))
        pointer, _ = read_any_pointer(store)
        assert isinstance(pointer, IndexPointer)
        content = recode(store.read(pointer.index.name), wanted)
        store.write(pointer.index.name, content)
        table = replace(pointer.index, stored_bytes=len(content))
        changed = replace(pointer, index=table, digest=digest_of(content))
        store.write("headrace.json", encode_pointer(changed))

    return plant


def _renamed(entry: ObjectEntry, wanted: Callable[[str], str]) -> ObjectEntry:
    return replace(entry, name=wanted(entry.name))


def _recode_parquet(content: bytes, wanted: Callable[[str], str]) -> bytes:
    index = decode_index(content, place="here")
    files = tuple(replace(each, entry=_renamed(each.entry, wanted)) for each in index.files)
    return encode_index(replace(index, files=files))


def _recode_tar(content: bytes, wanted: Callable[[str], str]) -> bytes:
    index = webdataset_index.decode_stored_index(content, place="here")
    shards = tuple(replace(each, entry=_renamed(each.entry, wanted)) for each in index.shards)
    return webdataset_index.encode_stored_index(replace(index, shards=shards))


def _recode_mds(content: bytes, wanted: Callable[[str], str]) -> bytes:
    stored = mds_index.decode_stored_index(content, place="here")
    names = pa.array([wanted(str(name)) for name in stored.index.stored_names], pa.string())
    changed = replace(stored.index, stored_names=names)
    return mds_index.encode_stored_index(replace(stored, index=changed))


def _plant_mds(key: str) -> Callable[[Path, Callable[[str], str]], None]:
    def plant(root: Path, wanted: Callable[[str], str]) -> None:
        index = json.loads((root / "index.json").read_text())
        name = wanted(index["shards"][0][key]["basename"])
        change_index(root, {("shards", 0, key, "basename"): name})
        (found,) = root.glob("*.mds.zstd")  # gone, so that the other of the two names counts
        if key == "raw_data":
            found.unlink()

    return plant


def _plant_packing(key: str) -> Callable[[Path, Callable[[str], str]], None]:
    def plant(root: Path, wanted: Callable[[str], str]) -> None:
        (path,) = root.glob("packing/*/packing.json")

        def change(content: Any) -> None:
            content[key]["name"] = wanted(content[key]["name"])

        _change_json(path, change)

    return plant


def _change_log(root: Path, change: Callable[[Any], None]) -> None:
    path = root / "_delta_log" / f"{0:020}.json"
    *head, last = path.read_text().splitlines()
    action = json.loads(last)
    change(action["add"])
    path.write_text("\n".join([*head, json.dumps(action)]))


def _plant_delta(root: Path, wanted: Callable[[str], str]) -> None:
    _change_log(root, lambda action: action.update(path=wanted(action["path"])))


def _plant_vector(kind: str) -> Callable[[Path, Callable[[str], str]], None]:
    def plant(root: Path, wanted: Callable[[str], str]) -> None:
        vector = {
            "storageType": kind,
            "pathOrInlineDv": wanted("a.parquet"),
            "offset": 1,
            "sizeInBytes": 40,
            "cardinality": 1,
        }
        stats = json.dumps({"numRecords": 8})
        _change_log(root, lambda action: action.update(deletionVector=vector, stats=stats))

    return plant


def _plant_sidecar(root: Path, wanted: Callable[[str], str]) -> None:
    log = root / "_delta_log"
    lines = (log / f"{0:020}.json").read_text().splitlines()
    sidecar = {"path": wanted("a.parquet"), "sizeInBytes": 600, "modificationTime": 0}
    lines = [
        json.dumps({"checkpointMetadata": {"version": 0}}),
        *lines[:2],
        json.dumps({"sidecar": sidecar}),
    ]
    name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_text("\n".join(lines))


_PLANTED: dict[str, tuple[Callable[[Path], None], Callable[[Path, Any], None]]] = {
    "headrace.json, a table": (_write_shards, _plant_pointer),
    "headrace.json, a shard": (_write_shards, _plant_shard),
    "stored index, its source": (_indexed(_write_parquet), _plant_path),
    "stored index of version 2": (_indexed(_write_parquet), _plant_url),
    "stored index, its file": (_indexed(_write_parquet), _plant_index),
    "stored index, a Parquet file": (_indexed(_write_parquet), _plant_in_index(_recode_parquet)),
    "stored index, a tar": (_indexed(_write_tar), _plant_in_index(_recode_tar)),
    "stored index, an MDS shard": (_indexed(_write_mds), _plant_in_index(_recode_mds)),
    "index.json, a packed shard": (_write_mds, _plant_mds("zip_data")),
    "index.json, a shard": (_write_mds, _plant_mds("raw_data")),
    "packing.json, lengths": (_write_packed, _plant_packing("lengths")),
    "packing.json, groups": (_write_packed, _plant_packing("groups")),
    "Delta, a file": (_write_delta, _plant_delta),
    "Delta, a deletion vector by path": (_write_delta, _plant_vector("p")),
    "Delta, a deletion vector": (_write_delta, _plant_vector("u")),
    "Delta, a sidecar": (_write_delta, _plant_sidecar),
}


def _read(url: str) -> None:
    """Read all that a server reads of a dataset, and what is stored for its rows."""
    with open_dataset(url) as dataset:
        for block in range(dataset.block_count):
            dataset.read_block(block)
        store = open_store(url)
        packing = read_packing(store, dataset.fingerprint)
        if packing is not None:
            StoredLengths(store, packing).read_group(0)


@pytest.fixture(params=_PLANTED)
def planted(
    request: pytest.FixtureRequest, tmp_path: Path
) -> tuple[Path, Path, Callable[[Path, Any], None]]:
    """A dataset, a copy of it beside, and what plants a name in it."""
    write, plant = _PLANTED[str(request.param)]
    own, other = tmp_path / "own", tmp_path / "other"
    write(own)
    _read(str(own))  # it is whole
    shutil.copytree(own, other)
    _opened.clear()
    return own, other, plant


def test_a_planted_name_leads_nowhere(
    planted: tuple[Path, Path, Callable[[Path, Any], None]], tmp_path: Path
) -> None:
    """Each name of the set, in each place where a format stores names."""
    own, other, plant = planted
    for number, name in _NAMES.items():
        root = tmp_path / "planted" / "own"
        shutil.copytree(own, root, copy_function=shutil.copy2)
        shutil.copytree(other, root.parent / "other", copy_function=shutil.copy2)
        plant(root, lambda real, name=name, root=root: name(root.parent / "other", real))
        _opened.clear()
        with pytest.raises(HeadraceError):
            _read(str(root))

        outside = str(root.parent / "other")
        assert not [path for path in map(os.path.realpath, _opened) if path.startswith(outside)], (
            number
        )
        shutil.rmtree(root.parent)


_FILES = {
    "headrace": (_write_shards, "shards/*"),
    "headrace, its table": (_write_shards, "manifests/*.shards.arrow"),
    "a stored index": (_indexed(_write_parquet), "manifests/*.index"),
    "Parquet": (_write_parquet, "*.parquet"),
    "WebDataset": (_write_tar, "*.tar"),
    "MDS": (_write_mds, "*.mds.zstd"),
    "MDS, its index": (_write_mds, "index.json"),
    "packing": (_write_packed, "packing/*/*.lengths"),
    "Delta, its log": (_write_delta, "_delta_log/*.json"),
    "Delta": (_write_delta, "a.parquet"),
}


@pytest.mark.parametrize("kind", _FILES)
def test_a_planted_link_leads_nowhere(kind: str, tmp_path: Path) -> None:
    """A link to a file elsewhere is refused, and one to a file in the folder is not."""
    write, pattern = _FILES[kind]
    root = tmp_path / "own"
    write(root)
    (file,) = root.glob(pattern)
    outside = tmp_path / "other" / file.name
    outside.parent.mkdir()
    file.rename(outside)
    file.symlink_to(outside)

    with pytest.raises(StoreRefusedError, match="link that leads out") as caught:
        _read(str(root))

    assert str(outside) not in str(caught.value)
    inside = root / "kept elsewhere"
    outside.rename(inside)
    file.unlink()
    file.symlink_to(inside)
    _read(str(root))


def test_a_folder_behind_a_link_leads_nowhere(tmp_path: Path) -> None:
    """Nor does a folder of shards; but the dataset's own folder may be a link."""
    root, other = tmp_path / "own", tmp_path / "other"
    _write_shards(root)
    (root / "shards").rename(other)
    (root / "shards").symlink_to(other)
    with pytest.raises(StoreRefusedError, match="link that leads out"):
        _read(str(root))
    (root / "shards").unlink()
    other.rename(root / "shards")
    (tmp_path / "current").symlink_to(root)

    _read(str(tmp_path / "current"))


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """Whoever may write to a folder does not choose where its other writers write."""
    store = open_store(str(tmp_path / "own"))
    store.write("a", b"")
    (tmp_path / "other").mkdir()
    (tmp_path / "own" / "shards").symlink_to(tmp_path / "other")

    with pytest.raises(StoreRefusedError, match="link that leads out"):
        store.write("shards/a", b"")
    with pytest.raises(StoreRefusedError, match="link that leads out"):
        store.delete("shards/a")
    assert [] == list((tmp_path / "other").iterdir())


def test_a_pipe_makes_no_reader_wait(tmp_path: Path) -> None:
    """A name that is a pipe without a writer is refused or empty, at once."""
    root = tmp_path / "own"
    _write_shards(root)
    (shard,) = root.glob("shards/*")
    shard.unlink()
    os.mkfifo(shard)

    with pytest.raises(HeadraceError):
        _read(str(root))
