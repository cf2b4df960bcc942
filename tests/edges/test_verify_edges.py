"""`headrace verify` sees the ends of shards, and says what it cannot see."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.cli.group import run
from headrace.converter import convert_files
from headrace.storage import open_dataset, verify_shards
from headrace.storage.shard.column_facts import is_shard_schema
from storage.mds.mds_make import texts, write_mds
from storage.webdataset.tar_files import samples, tar_bytes
from support.datasets import small_table, write_dataset
from support.images import write_images

_SAMPLES = 40


def _arrow(folder: Path) -> Path:
    write_dataset(str(folder), small_table(_SAMPLES), shard_samples=[25, 15])
    return folder / "shards" / "part-00000.arrow"


def _mds_by_ranges(folder: Path) -> Path:
    write_mds(folder, texts(_SAMPLES), size_limit=1000)
    return folder / "shard.00000.mds"


def _mds_with_hashes(folder: Path) -> Path:
    write_mds(folder, texts(_SAMPLES), size_limit=1000, hashes=["sha1"])
    return folder / "shard.00000.mds"


def _parquet(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(texts(_SAMPLES), folder / "a.parquet")
    return folder / "a.parquet"


def _parquet_with_checksums(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(texts(_SAMPLES), folder / "a.parquet", write_page_checksum=True)
    return folder / "a.parquet"


def _tar(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.tar").write_bytes(tar_bytes(samples(0, _SAMPLES)))
    return folder / "a.tar"


_KINDS: dict[Callable[[Path], Path], int] = {
    _arrow: 0,
    _mds_by_ranges: _SAMPLES,
    _mds_with_hashes: 0,
    _parquet: _SAMPLES,
    _parquet_with_checksums: 0,
    _tar: _SAMPLES,
}
_Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("make", "unprotected"), list(_KINDS.items()))
def test_samples_that_nothing_protects_are_counted(
    tmp_path: Path, capsys: _Capture, make: Callable[[Path], Path], unprotected: int
) -> None:
    """In words and as JSON; a dataset that is whole still is, so the exit code is 0."""
    make(tmp_path / "d")

    assert 0 == run(["verify", str(tmp_path / "d")])
    text = capsys.readouterr().out
    assert 0 == run(["verify", str(tmp_path / "d"), "--json"])
    facts = json.loads(capsys.readouterr().out)

    assert (f"{unprotected} of {_SAMPLES} samples have no checksum" in text) == bool(unprotected)
    assert (0, 0, unprotected) == (
        facts["faults"],
        facts["odd_shards"],
        facts["samples_unprotected"],
    )


@pytest.mark.parametrize("added", [b"\0", b"x", bytes(600), b"x" * 600])
@pytest.mark.parametrize("make", list(_KINDS))
def test_appended_bytes_are_found(
    tmp_path: Path, capsys: _Capture, make: Callable[[Path], Path], added: bytes
) -> None:
    """One byte or a block of them, zeros too; but zeros behind a tar file are its filling."""
    shard = make(tmp_path / "d")
    shard.write_bytes(shard.read_bytes() + added)
    is_filling = make is _tar and not any(added)

    assert (0 if is_filling else 1) == run(["verify", str(tmp_path / "d")])
    found = capsys.readouterr()
    assert is_filling or shard.name in found.out + found.err


def test_a_tar_file_behind_a_tar_file_is_found(tmp_path: Path) -> None:
    """Joined by `cat`, the samples of the second are in nobody's dataset."""
    shard = _tar(tmp_path / "d")
    shard.write_bytes(shard.read_bytes() + tar_bytes(samples(_SAMPLES, 2 * _SAMPLES)))

    with open_dataset(str(tmp_path / "d")) as dataset:
        [check] = verify_shards(dataset)

    assert check.problem is not None
    assert "were two files joined?" in check.problem


def test_folders_and_links_at_the_end_are_part_of_a_tar_file(tmp_path: Path) -> None:
    """What is no sample is no surplus."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as tar:
        for name, kind in (("a.txt", tarfile.REGTYPE), ("d", tarfile.DIRTYPE)):
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
    (tmp_path / "a.tar").write_bytes(sink.getvalue())

    with open_dataset(str(tmp_path)) as dataset:
        [check] = verify_shards(dataset)

    assert check.problem is None


def test_a_flipped_header_or_footer_is_found_unless_it_means_nothing(tmp_path: Path) -> None:
    """Every byte around the blocks: a fault, or what Arrow reads of the file is as it was."""
    shard = _arrow(tmp_path / "d")
    whole = shard.read_bytes()
    expected = _read(whole)
    missed = []
    with open_dataset(str(tmp_path / "d")) as dataset:
        places = [dataset.block_place(block) for block in range(dataset.block_count)]  # type: ignore[attr-defined] # of our own shards
        own = [place for place in places if place.shard.endswith(shard.name)]
        last = own[-1].offset + own[-1].stored_bytes
        around = [*range(own[0].offset), *range(last, len(whole))]
        for place in around:
            damaged = bytearray(whole)
            damaged[place] ^= 1 << (place % 8)
            shard.write_bytes(damaged)
            if dataset.check_shard(0).problem is None and expected != _read(bytes(damaged)):
                missed.append(place)

    assert [] == missed
    assert len(around) > 500


@pytest.mark.parametrize("appended", ["b/2.jpg", "c/2.jpg", "b/2.png"])
def test_shards_of_images_are_as_they_were_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], appended: str
) -> None:
    """Their format is found after they are written; an append adds a class, or takes it away."""
    target = tmp_path / "d"
    write_images(tmp_path / "first", "a/0.jpg", "b/1.jpg")
    write_images(tmp_path / "second", appended)
    convert_files(str(tmp_path / "first"), str(target), source_format="images")

    assert 0 == run(["verify", str(target)]), capsys.readouterr().out

    convert_files(str(tmp_path / "second"), str(target), source_format="images", mode="append")

    assert 0 == run(["verify", str(target)]), capsys.readouterr().out


@pytest.mark.parametrize("names", ['["a","c"]', '["a"]', None])
def test_classes_in_a_shard_are_the_first_ones_of_its_dataset(names: str | None) -> None:
    """Stored numbers would mean other classes otherwise."""
    shard = _with_note(pa.int64(), "headrace.classes", '["a","b"]')

    assert is_shard_schema(shard, _with_note(pa.int64(), "headrace.classes", '["a","b","c"]'))
    assert not is_shard_schema(shard, _with_note(pa.int64(), "headrace.classes", names))


def test_a_shard_and_its_dataset_name_no_two_formats() -> None:
    """Either may lack the format of a binary column, but not that of numbers."""
    names = ("jpeg", "png", None)
    images = {name: _with_note(pa.binary(), "headrace.format", name) for name in names}
    numbers = {name: _with_note(pa.uint16(), "headrace.format", name) for name in names}

    assert {("jpeg", "png"), ("png", "jpeg")} == _unlike(images)
    assert 6 == len(_unlike(numbers))


def _with_note(kind: pa.DataType, key: str, value: str | None) -> pa.Schema:
    return pa.schema([pa.field("x", kind, metadata={key: value} if value else None)])


def _unlike(schemas: dict[str | None, pa.Schema]) -> set[tuple[str | None, str | None]]:
    pairs = product(schemas, schemas)
    return {(a, b) for a, b in pairs if not is_shard_schema(schemas[a], schemas[b])}


def _read(content: bytes) -> tuple[pa.Table, pa.Table] | None:
    try:
        with pa.ipc.open_stream(content[8:]) as stream:
            streamed = stream.read_all()
        with pa.ipc.open_file(pa.py_buffer(content)) as file:
            found = file.read_all()
        found.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return streamed, found
