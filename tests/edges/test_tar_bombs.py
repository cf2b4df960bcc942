"""Tar files that stand for far more than they are: a clear error, in little time and memory.

The large ones have holes where their contents would be, so they take no room on the disk.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, HeadraceError, ShardCorruptError
from headrace.storage import open_dataset

_GIB = 1 << 30
_MOST_BYTES = 64 << 20
_MEMBERS = 8_000


def _header(name: str, size: int, kind: bytes = b"0") -> bytes:
    """Return a header with its checksum; sizes of any length are binary, as GNU tar has them."""
    header = bytearray(512)
    header[: len(name)] = name.encode()
    header[124:136] = b"\x80" + size.to_bytes(11, "big")
    header[156:157] = kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header)


def _holes(path: Path, members: list[tuple[str, int]]) -> None:
    """Write members whose contents are holes."""
    with path.open("wb") as file:
        for name, size in members:
            file.write(_header(name, size))
            file.seek(-(-size // 512) * 512, 1)
        file.truncate(file.tell() + 1024)


def _pax(records: bytes, kind: bytes = b"x") -> bytes:
    return _header("pax", len(records), kind) + records + bytes(-len(records) % 512)


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _path_record(length: int) -> bytes:
    text = b" path=" + b"n" * length + b".txt\n"
    return str(len(text) + len(str(len(text)))).encode() + text


_MEMBER = _header("0.txt", 3) + b"abc".ljust(512, b"\0")
_BOMBS: dict[str, tuple[Callable[[Path], object], type[HeadraceError], str]] = {
    "1 an abyss between two members of a sample": (
        lambda path: _holes(path, [("0.txt", 1), ("no-sample", 512 * _GIB), ("0.cls", 1)]),
        ConfigurationError,
        "sample '0' has 5497558[0-9]+ bytes",
    ),
    "2 a sample of forty GiB in forty columns": (
        lambda path: _holes(path, [(f"0.c{column}", _GIB) for column in range(40)]),
        ConfigurationError,
        "sample '0' has 42949",
    ),
    "3 a member of a TiB": (
        lambda path: _holes(path, [("0.txt", 1 << 40)]),
        ConfigurationError,
        "1099511627776 bytes",
    ),
    "4 a name of a megabyte": (
        _bytes(_pax(_path_record(1_000_000)) + _MEMBER),
        ConfigurationError,
        "has 1000004 characters",
    ),
    "5 pax records of 2 MiB": (
        _bytes(_pax(b"x" * (2 << 20)) + _MEMBER),
        ShardCorruptError,
        "a name has 2097152 bytes",
    ),
    "6 a pax record longer than a number": (
        _bytes(_pax(b"9" * 400 + b" path=x\n") + _MEMBER),
        ShardCorruptError,
        "pax record",
    ),
    "7 a pax size of twenty digits": (
        _bytes(_pax(b"29 size=99999999999999999999\n") + _MEMBER),
        ShardCorruptError,
        "the file has",
    ),
    "8 sparse members, ten thousand times": (
        _bytes(_header("0.txt", 1 << 40, b"S") * 10_000),
        ConfigurationError,
        "sparse",
    ),
    "9 global records that claim what is not there": (
        _bytes(_pax(b"", b"g") * 100 + _header("pax", 1 << 60, b"g")),
        ShardCorruptError,
        "the file has",
    ),
}


def _peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", _BOMBS)
def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path, name: str) -> None:
    """By name and place, and before its contents are read."""
    write, kind, message = _BOMBS[name]
    write(tmp_path / "evil.tar")

    def read() -> None:
        with pytest.raises(kind, match=message) as caught, open_dataset(str(tmp_path)) as dataset:
            dataset.read_block(0)
        assert "evil.tar" in caught.value.message

    assert _peak_bytes(read) < _MOST_BYTES


def _many(folder: Path, name: str) -> None:
    content = b"".join(_header(name.format(at), 0) for at in range(_MEMBERS))
    (folder / "many.tar").write_bytes(content + bytes(1024))


@pytest.mark.timeout(120)
def test_many_samples_cost_little_more_than_their_headers(tmp_path: Path) -> None:
    """Samples of no bytes, of which a tar file of 4 MB has 8,000."""
    _many(tmp_path, "{:08}.txt")
    found: list[int] = []

    def read() -> None:
        with open_dataset(str(tmp_path)) as dataset:
            blocks = range(dataset.block_count)
            found.extend(dataset.read_block(block).num_rows for block in blocks)

    assert _peak_bytes(read) < _MOST_BYTES
    assert _MEMBERS == sum(found)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "message"), [("0.c{:04}", "endings"), ("{:08}", "no samples")])
def test_many_members_that_are_none_are_refused(tmp_path: Path, name: str, message: str) -> None:
    """As columns of one sample, and as members that belong to none."""
    _many(tmp_path, name)

    def read() -> None:
        with pytest.raises(HeadraceError, match=message):
            open_dataset(str(tmp_path))

    assert _peak_bytes(read) < _MOST_BYTES
