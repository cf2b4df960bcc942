"""Tar files of others are served as datasets; what lies in them is refused with its place."""

from __future__ import annotations

import itertools
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigurationError, HeadraceError, NotADatasetError, ShardCorruptError
from headrace.storage import OpenDataset, open_dataset
from headrace.storage.store.local.local_store import LocalStore
from headrace.storage.store.store import ObjectEntry
from headrace.storage.webdataset.index import build_index
from storage.webdataset.tar_files import samples, wanted, write_tar
from support.s3 import S3


def _all(dataset: OpenDataset) -> list[dict[str, object]]:
    blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
    return pa.Table.from_batches(blocks).to_pylist()


def _read(root: Path) -> list[dict[str, object]]:
    with open_dataset(str(root)) as dataset:
        return _all(dataset)


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_samples_come_back_in_the_order_of_names(tmp_path: Path, form: int) -> None:
    """Members grouped by name are samples, whatever kind of tar."""
    write_tar(tmp_path / "b.tar", samples(50, 90), form=form)
    write_tar(tmp_path / "a.tar", samples(0, 50), form=form)

    assert wanted(0, 90) == _read(tmp_path)


def test_columns_say_what_they_hold(tmp_path: Path) -> None:
    """Types follow from the endings; a column that a sample lacks is nullable."""
    write_tar(tmp_path / "a.tar", samples(0, 5) | {"x.seg.png": b"p", "x.json": b"{}"})

    with open_dataset(str(tmp_path)) as dataset:
        found = {field.name: (str(field.type), field.nullable) for field in dataset.schema}
        formats = {f.name: (f.metadata or {}).get(b"headrace.format") for f in dataset.schema}

    assert {
        "__key__": ("string", False),
        "cls": ("int64", True),
        "jpg": ("binary", True),
        "json": ("string", True),
        "seg.png": ("binary", True),
        "txt": ("string", True),
    } == found
    assert (b"jpeg", b"png", b"json") == (formats["jpg"], formats["seg.png"], formats["json"])


def test_blocks_are_ranges_of_a_mebibyte(tmp_path: Path) -> None:
    """A shard is cut into blocks that can be read alone, and every sample is found in its own."""
    write_tar(tmp_path / "a.tar", samples(0, 400, size=20_000))
    write_tar(tmp_path / "b.tar", samples(400, 410, size=3 << 20))
    ids = np.random.default_rng(0).integers(0, 410, 60)

    with open_dataset(str(tmp_path)) as dataset:
        blocks, offsets = dataset.locate(ids)
        found = [
            dataset.read_block(int(block))["__key__"][int(offset)].as_py()
            for block, offset in zip(blocks, offsets, strict=True)
        ]
        firsts = dataset.block_first_samples(blocks)
        sizes = dataset.block_stored_bytes(np.arange(dataset.block_count))
        ranges = [dataset.block_sample_range(block) for block in range(dataset.block_count)]

    assert [f"part/{number:06d}" for number in ids] == found
    assert ids.tolist() == (firsts + offsets).tolist()
    assert 18 <= dataset.block_count <= 20
    assert sizes[:8].max() < 1.1 * 2**20
    assert all(left[1] == right[0] for left, right in itertools.pairwise(ranges))


class _Counting(LocalStore):
    """Files that count what is read of them."""

    read_bytes = 0

    def read_entry(self, entry: ObjectEntry, *, offset: int, length: int) -> bytes:
        """Read, and count."""
        self.read_bytes += length
        return super().read_entry(entry, offset=offset, length=length)


def test_the_contents_of_large_members_are_skipped(tmp_path: Path) -> None:
    """Opening reads headers: less than a tenth of a file of images of 2 MiB."""
    content = write_tar(tmp_path / "a.tar", samples(0, 20, size=2 << 20))
    files = _Counting(str(tmp_path))

    build_index(files)

    assert files.read_bytes < len(content) / 10


def test_names_of_any_length_and_script(tmp_path: Path) -> None:
    """Long names (pax, GNU) and such outside ASCII are keys as they are."""
    names = ["ä/" + "x" * 300 + ".txt", "日本語.txt", "with space.txt"]
    for form in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        write_tar(tmp_path / "a.tar", dict.fromkeys(names, b"1"), form=form)

        assert [name[:-4] for name in names] == [s["__key__"] for s in _read(tmp_path)]


def test_what_is_no_sample_is_left_out(tmp_path: Path) -> None:
    """Folders, links, files without an ending, hidden ones and notes of the writer."""
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for name, kind in {"d": tarfile.DIRTYPE, "l": tarfile.SYMTYPE}.items():
            member = tarfile.TarInfo(name)
            member.type = kind
            member.linkname = "/etc/passwd"
            tar.addfile(member)
        for name in ("README", "__index__.json", ".hidden", "0.txt"):
            tar.addfile(tarfile.TarInfo(name))

    assert [{"__key__": "0", "txt": ""}] == _read(tmp_path)


@pytest.mark.parametrize(
    "kind",
    [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE],
)
def test_the_size_of_what_has_no_content_is_ignored(tmp_path: Path, kind: bytes) -> None:
    """A folder may state a quota and a link the size of its file; the next header follows."""
    member = tarfile.TarInfo("d")
    member.type, member.linkname, member.size = kind, "0.txt", 700
    content = write_tar(tmp_path / "a.tar", {"0.txt": b"a", "1.txt": b"b"}, form=tarfile.GNU_FORMAT)
    path = tmp_path / "a.tar"
    path.write_bytes(content[:1024] + member.tobuf(tarfile.GNU_FORMAT) + content[1024:])

    assert [{"__key__": "0", "txt": "a"}, {"__key__": "1", "txt": "b"}] == _read(tmp_path)

    path.write_bytes(content[:2048] + member.tobuf(tarfile.GNU_FORMAT))

    assert [{"__key__": "0", "txt": "a"}, {"__key__": "1", "txt": "b"}] == _read(tmp_path)


def test_a_path_for_all_members_names_them(tmp_path: Path) -> None:
    """A global pax header holds until the next one; a member's own name goes before it."""
    path = tmp_path / "a.tar"
    parts = [
        tarfile.TarInfo.create_pax_global_header({"comment": "x", "path": "first/000.txt"}),
        _archived("a.txt", b"one"),
        _archived("b" * 120 + ".txt", b"two"),
        tarfile.TarInfo.create_pax_global_header({"comment": "y"}),
        tarfile.TarInfo.create_pax_global_header({"path": "last/001.txt"}),
        _archived("c.txt", b"three"),
    ]
    path.write_bytes(b"".join(parts) + bytes(1024))
    with tarfile.open(path) as tar:
        names = [member.name for member in tar]

    found = [(sample["__key__"], sample["txt"]) for sample in _read(tmp_path)]

    assert names == [f"{key}.txt" for key, _ in found]
    assert [("first/000", "one"), ("b" * 120, "two"), ("last/001", "three")] == found


def test_checksums_over_signed_bytes_are_those_of_old_writers(tmp_path: Path) -> None:
    """They differ where a header has bytes beyond 127, as UTF-8 has; a changed bit is damage."""
    path = tmp_path / "a.tar"
    names = ["blume ü.txt", "blüte " * 30 + ".txt"]
    content = bytearray(write_tar(path, dict.fromkeys(names, b"1"), form=tarfile.GNU_FORMAT))
    for at in range(0, len(content), 512):
        header = content[at : at + 512]
        if header[257:262] == b"ustar":
            rest = header[:148] + header[156:]
            signed = 8 * 32 + sum(value - 256 * (value > 127) for value in rest)
            content[at + 148 : at + 156] = b"%06o\0 " % signed
    path.write_bytes(content)
    with tarfile.open(path) as tar:
        assert names == tar.getnames()

    assert [name.removesuffix(".txt") for name in names] == [s["__key__"] for s in _read(tmp_path)]
    content[3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ShardCorruptError, match="at byte 0: a header with checksum"):
        open_dataset(str(tmp_path))


def _archived(name: str, content: bytes) -> bytes:
    """Return a member without the end of an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(content)
    return member.tobuf(tarfile.PAX_FORMAT) + content.ljust(512, b"\0")


def test_hard_links_with_content_are_skipped(tmp_path: Path) -> None:
    """The pax format allows the content of a file with each of its links."""
    member = tarfile.TarInfo("d")
    member.type, member.linkname, member.size = tarfile.LNKTYPE, "0.txt", 700
    content = write_tar(tmp_path / "a.tar", {"0.txt": b"a", "1.txt": b"b"})
    link = member.tobuf(tarfile.USTAR_FORMAT) + b"x" * 700 + bytes(324)
    (tmp_path / "a.tar").write_bytes(content[:1024] + link + content[1024:])

    assert [{"__key__": "0", "txt": "a"}, {"__key__": "1", "txt": "b"}] == _read(tmp_path)


def test_tar_files_without_samples_are_refused(tmp_path: Path) -> None:
    """One file or several in which no member is a sample are told as such, each in its number."""
    write_tar(tmp_path / "a.tar", {"README": b""})

    with pytest.raises(NotADatasetError, match=r"the tar file at .* has no samples, .* at least"):
        build_index(LocalStore(str(tmp_path)))
    write_tar(tmp_path / "b.tar", {"README": b""})
    with pytest.raises(NotADatasetError, match=r"the 2 tar files at .* have no samples"):
        build_index(LocalStore(str(tmp_path)))


def test_the_fingerprint_names_the_content(tmp_path: Path) -> None:
    """Copies have the same one; another name, member or order has another."""
    write_tar(tmp_path / "1" / "a.tar", samples(0, 9))
    write_tar(tmp_path / "2" / "a.tar", samples(0, 9))
    write_tar(tmp_path / "3" / "b.tar", samples(0, 9))
    write_tar(tmp_path / "4" / "a.tar", samples(0, 10))
    prints = []
    for number in range(1, 5):
        with open_dataset(str(tmp_path / str(number))) as dataset:
            prints.append(dataset.fingerprint)

    assert prints[0] == prints[1]
    assert 3 == len(set(prints))
    with open_dataset(str(tmp_path / "1"), fingerprint=prints[0]) as dataset:
        assert 9 == dataset.sample_count
    with pytest.raises(NotADatasetError, match=prints[0]):
        open_dataset(str(tmp_path / "1"), fingerprint="0" * 32)


def test_tar_files_are_served_from_s3(s3: S3, tmp_path: Path) -> None:
    """By ranged reads from a real store; a replaced file is noticed by its entity tag."""
    content = write_tar(tmp_path / "a.tar", samples(0, 50))
    other = write_tar(tmp_path / "b.tar", samples(1, 51))
    client = s3.weed.client()
    client.put_object(Bucket=s3.weed.bucket, Key=s3.key("w/a.tar"), Body=content)

    with open_dataset(s3.url("w")) as dataset:
        found = _all(dataset)
        client.put_object(Bucket=s3.weed.bucket, Key=s3.key("w/a.tar"), Body=other)
        with pytest.raises(ShardCorruptError, match="has changed"):
            dataset.read_block(0)
    client.close()

    assert wanted(0, 50) == found


def _header(**fields: bytes) -> bytes:
    """Return the header of a member, with the checksum of what is in it."""
    places = {"name": (0, 100), "size": (124, 12), "kind": (156, 1), "magic": (257, 8)}
    header = bytearray(512)
    for field, value in ({"size": b"0", "kind": b"0", "magic": b"ustar\x0000"} | fields).items():
        start, length = places[field]
        header[start : start + length] = value.ljust(length, b"\0")
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


def _pax(records: bytes) -> bytes:
    size = f"{len(records):o}".encode()
    return _header(kind=b"x", name=b"p", size=size) + records.ljust(512, b"\0")


_MEMBER = _header(name=b"0.txt", size=b"3") + b"abc".ljust(512, b"\0")
_HOSTILE: dict[str, tuple[bytes, type[HeadraceError], str]] = {
    "01 empty": (b"", ShardCorruptError, "not a tar file"),
    "02 zeros": (bytes(2048), ShardCorruptError, "not a tar file"),
    "03 text": (b"0.txt,abc\n" * 200, ShardCorruptError, "number|checksum"),
    "04 cut within a header": (_MEMBER + _MEMBER[:200], ShardCorruptError, "within a header"),
    "05 cut within a member": (_MEMBER[:514], ShardCorruptError, "ends at byte 515"),
    "06 a changed header": (_MEMBER.replace(b"0.txt", b"1.txt"), ShardCorruptError, "checksum"),
    "07 a member of 8 GiB": (
        _header(name=b"0.txt", size=b"77777777777") + bytes(512),
        ShardCorruptError,
        "ends at byte 8589935103",
    ),
    "08 a member of 2**88 bytes": (
        _header(name=b"0.txt", size=b"\x80" + b"\xff" * 11) + bytes(512),
        ShardCorruptError,
        "the file has 1024",
    ),
    "09 a member of negative size": (
        _header(name=b"0.txt", size=b"\xff" * 12) + bytes(512),
        ShardCorruptError,
        "number",
    ),
    "10 a size that is not a number": (
        _header(name=b"0.txt", size=b"12x") + bytes(512),
        ShardCorruptError,
        "number",
    ),
    "11 a name of 1 GiB": (
        _header(kind=b"L", size=b"10000000000") + bytes(512),
        ShardCorruptError,
        "ends at byte",
    ),
    "12 a name of 2 MiB": (
        _header(kind=b"L", size=b"10000000") + bytes(1 << 21),
        ShardCorruptError,
        "a name has",
    ),
    "13 a pax record without an end": (_pax(b"99 path=x\n") + _MEMBER, ShardCorruptError, "pax"),
    "14 a pax record of no length": (_pax(b"0 path=x\n") + _MEMBER, ShardCorruptError, "pax"),
    "15 a pax size that is not a number": (
        _pax(b"11 size=-9\n") + _MEMBER,
        ShardCorruptError,
        "-9",
    ),
    "16 a pax size past the end": (
        _pax(b"15 size=999999\n") + _MEMBER,
        ShardCorruptError,
        "ends at byte",
    ),
    "17 a name that is not UTF-8": (
        _header(name=b"\xff\xfe.txt", size=b"0"),
        ShardCorruptError,
        "UTF-8",
    ),
    "18 the same member twice": (_MEMBER + _MEMBER, ShardCorruptError, "second member"),
    "19 a sparse member": (_header(name=b"0.txt", kind=b"S"), ConfigurationError, "sparse"),
    "20 a sparse member of pax": (
        _pax(b"22 GNU.sparse.major=1\n") + _MEMBER,
        ConfigurationError,
        "sparse",
    ),
    "21 thousands of columns": (
        b"".join(_header(name=b"0.%d" % number) for number in range(1100)),
        ConfigurationError,
        "endings",
    ),
    "22 no samples": (_header(name=b"README"), NotADatasetError, "no samples"),
    "23 text that is not UTF-8": (
        _header(name=b"0.txt", size=b"2") + b"\xff\xfe".ljust(512, b"\0"),
        ShardCorruptError,
        "column 'txt'.*UTF8",
    ),
    "24 a class that is not a number": (
        _header(name=b"0.cls", size=b"3") + b"abc".ljust(512, b"\0"),
        ShardCorruptError,
        "column 'cls'",
    ),
    "25 a class beyond 64 bits": (
        _header(name=b"0.cls", size=b"24") + b"9" * 20 + bytes(492),
        ShardCorruptError,
        "column 'cls'",
    ),
    "26 compressed": (b"\x1f\x8b\x08" + bytes(1021), ShardCorruptError, "checksum|number"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_tar_files_are_refused(tmp_path: Path, name: str) -> None:
    """Each is a typed error that names the file."""
    content, kind, message = _HOSTILE[name]
    (tmp_path / "evil.tar").write_bytes(content)

    with pytest.raises(kind, match=message) as caught:
        _read(tmp_path)

    assert isinstance(caught.value, NotADatasetError) or "evil.tar" in caught.value.message


def test_paths_that_lead_out_are_keys_and_nothing_else(tmp_path: Path) -> None:
    """Nothing is ever written by a member's name."""
    write_tar(tmp_path / "a.tar", {"../../etc/x.txt": b"1", "/etc/passwd.txt": b"2"})

    assert ["../../etc/x", "/etc/passwd"] == [sample["__key__"] for sample in _read(tmp_path)]


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    at=st.floats(0, 1, exclude_max=True),
    change=st.one_of(
        st.integers(0, 255).map(lambda byte: lambda c, i: c[:i] + bytes([byte]) + c[i + 1 :]),
        st.just(lambda c, i: c[:i]),
        st.integers(1, 600).map(lambda n: lambda c, i: c[:i] + c[i + n :]),
        st.integers(0, 2**64 - 1).map(lambda n: lambda c, i: c[:i] + struct.pack("<Q", n) + c[i:]),
    ),
)
def test_mutated_tar_files_are_read_or_refused(
    tmp_path: Path, at: float, change: Callable[[bytes, int], bytes]
) -> None:
    """Whatever is changed: samples, or a typed error."""
    content = write_tar(tmp_path / "a.tar", samples(0, 9))
    (tmp_path / "a.tar").write_bytes(change(content, int(at * len(content))))

    try:
        found = _read(tmp_path)
    except HeadraceError:
        return

    assert all(sample["__key__"] for sample in found)
