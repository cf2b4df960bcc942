"""No flipped bit of an MDS ``index.json`` changes what is served, unless it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.group import run
from headrace.errors import (
    HeadraceError,
    ManifestCorruptError,
    ObjectNotFoundError,
    ShardCorruptError,
)
from headrace.storage import open_dataset, open_store, store_index, verify_blocks
from headrace.storage.mds import MdsWriter
from storage.mds.mds_make import change_index, index_of, take_descriptions_away, texts, write_mds

_FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "hashed": {"hashes": ["xxh3_64"]},
    "zstd": {"compression": "zstd"},
    "snappy": {"compression": "snappy"},
    "bz2": {"compression": "bz2"},
}
_SAMPLES = 60


def _content(url: str) -> tuple[Any, ...] | None:
    """Return all that is served, and how many samples are protected; None if damage is found."""
    with open_dataset(url) as dataset:
        try:
            blocks = [dataset.read_block(block).to_pydict() for block in range(dataset.block_count)]
        except (ShardCorruptError, ObjectNotFoundError):
            return None
        checks = [dataset.check_shard(shard) for shard in range(dataset.shard_count)]
        return dataset.schema, blocks, [check.unprotected_count for check in checks]


@pytest.mark.parametrize("form", list(_FORMS))
def test_a_flipped_bit_is_found_or_means_nothing(tmp_path: Path, form: str) -> None:
    """All bits of names of columns, and a bit of each other byte or each second one."""
    write_mds(tmp_path, texts(_SAMPLES), size_limit=1200, **_FORMS[form])
    path = tmp_path / "index.json"
    before = path.read_bytes()
    expected, changed = _content(str(tmp_path)), []
    names = [before.find(name, before.find(b'"shards"')) for name in (b'"number"', b'"text"')]
    marked = {place + at for place in names for at in range(1, 5)}
    for place in sorted(marked | set(range(len(form) % 2, len(before), 2))):
        for bit in range(8) if place in marked else (place % 6,):
            content = bytearray(before)
            content[place] ^= 1 << bit
            path.write_bytes(content)
            try:
                found = _content(str(tmp_path))
            except HeadraceError:
                continue
            if found not in (None, expected):
                changed.append((place, bit, content[max(0, place - 20) : place + 20]))

    assert [] == changed


@pytest.mark.parametrize("form", list(_FORMS))
@pytest.mark.parametrize("shard", [0, 1, -1])
def test_another_name_of_a_column_is_found_before_anything_is_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str, shard: int
) -> None:
    """By opening, by each command, and through a stored index; it names both."""
    data, index = tmp_path / "data", tmp_path / "index"
    write_mds(data, texts(_SAMPLES), size_limit=1200, **_FORMS[form])
    change_index(data, {("shards", shard, "column_names"): ["number", "tezt"]})

    with pytest.raises(ManifestCorruptError, match=r"'text'.*'tezt'.*restore"):
        open_dataset(str(data))
    assert 0 != run(["verify", str(data)])
    assert "tezt" in capsys.readouterr().err
    store_index(str(data), str(index))
    with pytest.raises(ManifestCorruptError, match="tezt"):
        open_dataset(f"{index} from {data}")


def test_another_size_or_encoding_is_found(tmp_path: Path) -> None:
    """Of the same width, so that the values would be others: 1.5 read as 4609434218613702656."""
    table = pa.table({"x": [1.5, 2.5, 3.5]})
    write_mds(tmp_path, table)
    change_index(tmp_path, {("shards", 0, "column_encodings"): ["int64"]})

    with pytest.raises(ManifestCorruptError, match="float64"):
        open_dataset(str(tmp_path))


def test_each_shard_is_compared_when_it_is_read(tmp_path: Path) -> None:
    """Its header is its own: one that is damaged there stops none of the others."""
    write_mds(tmp_path, texts(_SAMPLES), size_limit=1200)
    path = tmp_path / "shard.00001.mds"
    path.write_bytes(path.read_bytes().replace(b'"text"', b'"texu"'))

    with open_dataset(str(tmp_path)) as dataset:
        [fault] = verify_blocks(dataset, threads=1)

    assert path.name in fault.shard
    assert "texu" in fault.message


def test_a_header_of_millions_of_samples_is_compared_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such a header only parts are read; the description in it is read as well."""
    monkeypatch.setattr("headrace.storage.mds.headers._MAX_HEADER_BYTES", 64)
    write_mds(tmp_path, texts(_SAMPLES), size_limit=1200)
    with open_dataset(str(tmp_path)) as dataset:
        assert [] == list(verify_blocks(dataset, threads=1))
    path = tmp_path / "shard.00001.mds"
    path.write_bytes(path.read_bytes().replace(b'"text"', b'"texu"'))

    with open_dataset(str(tmp_path)) as dataset, pytest.raises(ShardCorruptError, match="texu"):
        dataset.read_block(1)


def test_a_header_without_a_description_is_read(tmp_path: Path) -> None:
    """Other writers than Mosaic's may leave it out: Mosaic's reader never looks there."""
    table = texts(10)
    write_mds(tmp_path, table)
    take_descriptions_away(tmp_path)

    with open_dataset(str(tmp_path)) as dataset:
        assert table.column("text").to_pylist() == dataset.read_block(0)["text"].to_pylist()


def test_a_shard_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    """One digit of a name: samples came twice and others never, if both shards had one size."""
    table = pa.table({"x": list(range(200))})
    with MdsWriter(open_store(str(tmp_path)), table.schema, hashes=(), size_limit=1100) as writer:
        writer.append(table.to_batches()[0])
        shards = writer.close()
    entries = [shard.as_json() for shard in shards]
    entries[1] = entries[0]
    (tmp_path / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))

    with pytest.raises(ManifestCorruptError, match="named by two shards"):
        open_dataset(str(tmp_path))


def test_a_hash_that_is_listed_is_there(tmp_path: Path) -> None:
    """A damaged key lost it: the shard was read without any, and `verify` found nothing."""
    write_mds(tmp_path, texts(10), hashes=["sha1"])
    stated = index_of(tmp_path)["shards"][0]["raw_data"]
    hashes = stated.pop("hashes")
    change_index(tmp_path, {("shards", 0, "raw_data"): {**stated, "hasjes": hashes}})

    with pytest.raises(ManifestCorruptError, match="no hash 'sha1'"):
        open_dataset(str(tmp_path))
