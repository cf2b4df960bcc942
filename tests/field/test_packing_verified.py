"""`headrace verify` names each damaged file of those that packed rows need, and exits with 1."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.cli.group import run
from headrace.errors import ManifestCorruptError
from headrace.storage import RowOptions, ShardWriter, open_store, read_packing
from headrace.storage.dataset.commit import commit_dataset
from support.packed import documents_of, index_rows, table_of

_FILES = ("packing.json", "lengths", "groups", "8.rows", "64.rows")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _damages() -> Iterator[tuple[str, Callable[[Path], object]]]:
    yield "one bit", _flip
    yield "cut", lambda path: path.write_bytes(path.read_bytes()[:-3])
    yield "longer", lambda path: path.write_bytes(path.read_bytes() + b"}")
    yield "empty", lambda path: path.write_bytes(b"")
    yield "gone", Path.unlink


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a dataset whose documents are packed in two ways."""
    folder = tmp_path_factory.mktemp("packed")
    table, store = table_of(documents_of(3000, seed=3)), open_store(str(folder))
    writer = ShardWriter(store, "a.arrow", schema=table.schema)
    for batch in table.to_batches():
        writer.append(batch)
    commit_dataset(store, table.schema, [writer.close()])
    for length in (8, 64):
        index_rows(str(folder), RowOptions(length, cut=2, eos=2))
    return folder


def _file(folder: Path, kind: str) -> Path:
    [pointer] = folder.glob("packing/*/packing.json")
    stated = json.loads(pointer.read_text())
    if kind == "packing.json":
        return pointer
    if kind.endswith(".rows"):
        [row] = (row for row in stated["rows"] if f"{row['length']}.rows" == kind)
        return folder / str(row["counts"]["name"])
    return folder / str(stated[kind]["name"])


@pytest.mark.parametrize("kind", _FILES)
@pytest.mark.parametrize(("name", "damage"), list(_damages()))
def test_each_damaged_file_is_named(
    packed: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    name: str,
    damage: Callable[[Path], object],
) -> None:
    """A bit, an end, bytes behind it, or all of it: in words, and as JSON; blocks are whole."""
    path = _file(packed, kind)
    before = path.read_bytes()
    damage(path)
    try:
        codes = (run(["verify", str(packed)]), run(["verify", str(packed), "--json"]))
    finally:
        path.write_bytes(before)
    *words, last = capsys.readouterr().out.splitlines()

    assert (1, 1) == codes, name
    assert f"{packed.name}/{path.relative_to(packed)}" in words[0]
    assert "headrace index --pack-length" in words[0]
    assert (1, 0) == (json.loads(last)["packing_faults"], json.loads(last)["faults"])


def test_whole_files_are_found_whole(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing is said of them."""
    assert 0 == run(["verify", str(packed), "--json"])
    assert 0 == json.loads(capsys.readouterr().out)["packing_faults"]


def test_no_bit_of_packing_json_changes_rows_unseen(packed: Path) -> None:
    """A bit of each of its bytes: it is refused, or says the same."""
    path = _file(packed, "packing.json")
    before = path.read_bytes()
    fingerprint, store = path.parent.name, open_store(str(packed))
    expected = read_packing(store, fingerprint)
    changed = []
    try:
        for place in range(len(before)):
            content = bytearray(before)
            content[place] ^= 1 << place % 6
            path.write_bytes(content)
            try:
                found = read_packing(store, fingerprint)
            except ManifestCorruptError:
                continue
            if found != expected:
                changed.append(place)
    finally:
        path.write_bytes(before)

    assert [] == changed
