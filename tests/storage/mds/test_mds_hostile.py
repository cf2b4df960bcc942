"""A numbered set of damaged and hostile files: each is a typed error with its place."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import (
    ConfigurationError,
    ManifestCorruptError,
    NotADatasetError,
    ShardCorruptError,
    UnsupportedColumnError,
)
from headrace.storage import open_dataset
from headrace.storage.mds import ENCODING_KEY
from headrace.storage.mds.index import MAX_SCHEMAS
from storage.mds.mds_make import change_index, change_words, index_of, texts, write_mds

SAMPLES = 10
_PLACE = r"shard\.00000\.mds.*, block 0, at byte"
Damage = Callable[[Path], None]


def _shard_zero(folder: Path) -> Path:
    (path,) = folder.glob("shard.00000.mds*")
    return path


def _index_change(*path: str | int, value: object) -> Damage:
    return lambda folder: change_index(folder, {path: value})


def _shard_change(*path: str | int, value: object) -> Damage:
    return _index_change("shards", 0, *path, value=value)


def _file(name: str, content: bytes) -> Damage:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def _index_text(text: str | bytes) -> Damage:
    content = text if isinstance(text, bytes) else text.encode()
    return _file("index.json", content)


def _without(*path: str | int) -> Damage:
    def remove(folder: Path) -> None:
        index: Any = index_of(folder)
        target = index["shards"][0]
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]
        (folder / "index.json").write_text(json.dumps(index))

    return remove


def _many_schemas(folder: Path) -> None:
    index = index_of(folder)
    shard = index["shards"][0]
    index["shards"] = [
        {**shard, "column_names": [f"a{i}", f"b{i}"]} for i in range(MAX_SCHEMAS + 1)
    ]
    (folder / "index.json").write_text(json.dumps(index))


BAD_INDEXES: dict[str, tuple[Damage, str]] = {
    "01 empty file": (_index_text(""), "expected '{'"),
    "02 no JSON": (_index_text("<html>"), "expected '{'"),
    "03 cut off": (_index_text('{"version": 2, "shards": [{"a"'), "index.json: "),
    "04 a list": (_index_text("[]"), "expected '{'"),
    "05 no shards": (_index_text('{"version": 2}'), "0 lists named 'shards'"),
    "06 shards twice": (_index_text('{"shards": [], "version": 2, "shards": []}'), "2 lists"),
    "07 shards is a number": (_index_text('{"shards": 1, "version": 2}'), "0 lists"),
    "08 version 3": (
        _index_change("version", value=3),
        "version 3 found, but this headrace reads 2",
    ),
    "09 no version": (_index_text('{"shards": []}'), "version None"),
    "10 bytes after the end": (_index_text('{"shards": [], "version": 2} x'), "after the end"),
    "11 no UTF-8": (_index_text(b'{"\xff": 1}'), "utf-8"),
    "12 nested too deep": (_index_text('{"a": ' + "[" * 100_000), "index.json: "),
    "13 a shard is a number": (_index_change("shards", 0, value=7), "shard 0 is not a JSON object"),
    "14 shard version 3": (_shard_change("version", value=3), "shard 0: version 3"),
    "15 no samples": (_without("samples"), "shard 0: no 'samples'"),
    "16 negative samples": (_shard_change("samples", value=-1), "samples is -1"),
    "17 samples are true": (_shard_change("samples", value=True), "samples is True"),
    "18 more samples than bytes": (_shard_change("samples", value=10**6), "too few for 1000000"),
    "19 a huge number": (_shard_change("samples", value=10**30), "samples is 1000000000000"),
    "20 raw bytes of 4 GiB": (_shard_change("raw_data", "bytes", value=2**32), "bytes is 42949"),
    "21 path traversal": (_shard_change("raw_data", "basename", value="../x.mds"), "basename"),
    "22 absolute path": (_shard_change("raw_data", "basename", value="/etc/passwd"), "basename"),
    "23 name is a number": (_shard_change("raw_data", "basename", value=1), "is not text"),
    "24 unknown encoding": (_shard_change("column_encodings", 0, value="int128"), "'int128'"),
    "25 shape of zero": (
        _shard_change("column_encodings", 0, value="ndarray:int8:0"),
        "without elements",
    ),
    "26 shape of 8 EiB": (
        _shard_change("column_encodings", 0, value="ndarray:int64:9999999999,99999999"),
        "more than",
    ),
    "27 wrong column size": (
        _shard_change("column_sizes", 0, value=4),
        "its encoding 'int64' has 8",
    ),
    "28 more names than encodings": (
        _shard_change("column_names", value=["a", "b", "c"]),
        "3 names, 2 encodings",
    ),
    "29 a name twice": (_shard_change("column_names", value=["a", "a"]), "occurs twice"),
    "30 a name of half a character": (
        _shard_change("column_names", 0, value="\ud800"),
        "surrogates not allowed",
    ),
    "31 names are a text": (
        _shard_change("column_names", value="ab"),
        "column_names is not a list",
    ),
    "32 unknown compression": (_shard_change("compression", value="lzma"), "'lzma'"),
    "33 unknown level": (_shard_change("compression", value="zstd:99"), "'zstd:99'"),
    "34 compressed without a file": (_shard_change("compression", value="gz"), "zip_data is no"),
    "35 unknown hash": (_shard_change("raw_data", "hashes", value={"crc": "0"}), "hash 'crc'"),
    "36 hashes are a list": (_shard_change("raw_data", "hashes", value=[1]), "not a JSON object"),
    "37 too many schemas": (_many_schemas, f"more than {MAX_SCHEMAS}"),
    "38 a name is a list": (_shard_change("column_names", 0, value=[]), "unhashable"),
}


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_a_bad_index_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    """An index that lies is ManifestCorruptError, and says where and what."""
    damage, message = BAD_INDEXES[case]
    write_mds(tmp_path, texts(SAMPLES))
    damage(tmp_path)

    with pytest.raises(ManifestCorruptError, match=r"index\.json") as caught:
        open_dataset(str(tmp_path))
    assert message in str(caught.value)


def _words(changes: dict[int, int]) -> Damage:
    return lambda folder: change_words(_shard_zero(folder), changes)


def _cut(count: int) -> Damage:
    def damage(folder: Path) -> None:
        path = _shard_zero(folder)
        path.write_bytes(path.read_bytes()[: -count or None])

    return damage


def _appended(content: bytes) -> Damage:
    def damage(folder: Path) -> None:
        path = _shard_zero(folder)
        path.write_bytes(path.read_bytes() + content)

    return damage


def _flipped(place: int) -> Damage:
    def damage(folder: Path) -> None:
        path = _shard_zero(folder)
        content = bytearray(path.read_bytes())
        content[place] ^= 1
        path.write_bytes(content)

    return damage


def _compressed_file(content: bytes) -> Damage:
    """Replace a gz shard, and let the index say so."""

    def damage(folder: Path) -> None:
        _shard_zero(folder).write_bytes(content)
        change_index(folder, {("shards", 0, "zip_data", "bytes"): len(content)})

    return damage


def _cut_and_stated(count: int) -> Damage:
    """Cut a compressed shard, and let the index say so."""

    def damage(folder: Path) -> None:
        content = _shard_zero(folder).read_bytes()[:-count]
        _compressed_file(content)(folder)

    return damage


def _gz(content: bytes) -> bytes:
    squeeze = zlib.compressobj(9, wbits=31)
    return squeeze.compress(content) + squeeze.flush()


PLAIN: dict[str, object] = {}
HASHED: dict[str, object] = {"hashes": ["xxh3_64"]}
GZ: dict[str, object] = {"compression": "gz"}
SNAPPY: dict[str, object] = {"compression": "snappy"}
# A shard of 10 samples has its offsets at bytes 4 to 47 and its first sample behind the config.
BAD_SHARDS: dict[str, tuple[dict[str, object], Damage, str]] = {
    "01 truncated": (PLAIN, _cut(5), "expected"),
    "02 truncated in the header": (
        PLAIN,
        _file("shard.00000.mds", b"1234"),
        "expected",
    ),
    "03 empty": (PLAIN, _file("shard.00000.mds", b""), "expected"),
    "04 another count": (PLAIN, _words({0: 11}), "11 samples found, but the index says 10"),
    "05 first offset in the header": (PLAIN, _words({4: 8}), "inside the header of 48"),
    "06 offsets decrease": (PLAIN, _words({12: 60}), "the next one is 60"),
    "07 offset outside": (PLAIN, _words({44: 10**9}), "an offset is 1000000000"),
    "08 last offset early": (PLAIN, _words({44: 0}), "the next one is 0"),
    "09 hashed and flipped": (HASHED, _flipped(-1), "xxh3_64"),
    "10 hashed and longer": (HASHED, _appended(b"x"), "more bytes found"),
    "11 hashed and truncated": (HASHED, _cut(1), "bytes found, but the index says"),
    "12 no gzip": (GZ, _compressed_file(b"not gzip at all"), "compressed by gz"),
    "13 gzip cut off": (GZ, _cut_and_stated(9), "Truncated"),
    "14 decompression bomb": (GZ, _compressed_file(_gz(bytes(1 << 28))), "more than"),
    "15 gzip too small": (GZ, _compressed_file(_gz(b"x")), "1 bytes found when decompressed"),
    "16 snappy of another size": (SNAPPY, _flipped(0), "the index says"),
    "17 snappy flipped": (SNAPPY, _flipped(3), "shard.00000.mds.snappy"),
    "18 compressed and longer": (GZ, _appended(b"x"), "more bytes found"),
}


@pytest.mark.parametrize("case", BAD_SHARDS)
def test_a_bad_shard_is_refused_with_its_place(tmp_path: Path, case: str) -> None:
    """A shard that lies is ShardCorruptError, and says where and what."""
    options, damage, message = BAD_SHARDS[case]
    write_mds(tmp_path, texts(SAMPLES), **options)
    damage(tmp_path)

    with (
        open_dataset(str(tmp_path)) as dataset,
        pytest.raises(ShardCorruptError, match=_PLACE) as caught,
    ):
        dataset.read_block(0)
    assert message in str(caught.value)


def _sample_bytes(*values: bytes) -> bytes:
    sizes = np.array([len(value) for value in values], "<u4")
    return sizes.tobytes() + b"".join(values)


def _write_raw(folder: Path, encoding: str, samples: list[bytes]) -> None:
    """Write a shard whose one column ``x`` has an encoding, of samples as they are."""
    shape = {"int64": 8, "ndarray:int32:2": 8}
    edges = 4 * (len(samples) + 2) + np.cumsum([0, *map(len, samples)])
    content = np.array([len(samples), *edges], "<u4").tobytes() + b"".join(samples)
    folder.mkdir(exist_ok=True)
    (folder / "shard.00000.mds").write_bytes(content)
    shard = {
        "column_encodings": [encoding],
        "column_names": ["x"],
        "column_sizes": [shape.get(encoding)],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(content), "hashes": {}},
        "samples": len(samples),
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))


GOOD_TEXT = _sample_bytes(b"good")
ARRAY = _sample_bytes(bytes([1 << 2, 2]) + bytes(8))  # two numbers of four bytes
ANY_ARRAY = _sample_bytes(bytes([33, 1 << 2, 2]) + bytes(8))
BAD_SAMPLES: dict[str, tuple[str, list[bytes], int, str]] = {
    "01 size beyond the sample": ("str", [GOOD_TEXT, b"\xff\0\0\0abc"], 1, "its columns need 259"),
    "02 size below the sample": ("str", [GOOD_TEXT, b"\x01\0\0\0abc"], 1, "its columns need 5"),
    "03 no room for sizes": ("bytes", [b"\x01\0"], 0, "2 bytes found, 4 of sizes expected"),
    "04 a number cut": ("int64", [bytes(8), bytes(7)], 1, "its columns need 8 bytes, but it has 7"),
    "05 no UTF-8": ("str", [GOOD_TEXT, _sample_bytes(b"ab\xff")], 1, "not UTF-8 at its byte 2"),
    "06 half a character": ("json", [_sample_bytes(b"\xc3")], 0, "not UTF-8 at its byte 0"),
    "07 no number": ("str_float", [_sample_bytes(b"1.5"), _sample_bytes(b"x")], 1, "'x' found"),
    "08 an empty array": ("ndarray:int32", [ARRAY, _sample_bytes(b"")], 1, "expected its shape"),
    "10 shape beyond the value": (
        "ndarray:int32",
        [ARRAY, _sample_bytes(bytes([1 << 2 | 3]) + b"\xff" * 8)],
        1,
        "0 bytes of elements",
    ),
    "11 head cut": (
        "ndarray:int32",
        [ARRAY, _sample_bytes(bytes([1 << 2 | 3, 1]))],
        1,
        "its header has 9",
    ),
    "13 half an element": (
        "ndarray:int32",
        [ARRAY, _sample_bytes(bytes([1 << 2, 2]) + bytes(7))],
        1,
        "7 bytes of",
    ),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_a_bad_sample_is_refused_with_its_ordinal(tmp_path: Path, case: str) -> None:
    """A value that is none of its encoding is ShardCorruptError, and names the sample."""
    encoding, samples, bad, message = BAD_SAMPLES[case]
    _write_raw(tmp_path, encoding, samples)

    with (
        open_dataset(str(tmp_path)) as dataset,
        pytest.raises(ShardCorruptError, match=f"sample {bad} of the shard") as caught,
    ):
        dataset.read_block(0)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([_sample_bytes(b"\x21")], "expected its type and shape"),
        ([_sample_bytes(b"\x07\x04\x01a")], "type is 7"),
        ([_sample_bytes(b"\x21\x00")], "0 axes"),
    ],
)
def test_a_bad_first_array_stops_the_opening(
    tmp_path: Path, samples: list[bytes], message: str
) -> None:
    """Where the first array tells the schema, damage in it is seen when the dataset opens."""
    _write_raw(tmp_path, "ndarray", samples)

    with pytest.raises(ShardCorruptError, match=message):
        open_dataset(str(tmp_path))


def test_other_formats_are_refused_by_name(tmp_path: Path) -> None:
    """A shard of a format that no writer has is named, with its format."""
    write_mds(tmp_path, texts(SAMPLES))
    change_index(tmp_path, {("shards", 0, "format"): "lines"})

    with pytest.raises(NotADatasetError, match="shard 0 has the format 'lines'"):
        open_dataset(str(tmp_path))


def test_pickles_are_refused_unless_allowed(tmp_path: Path) -> None:
    """A column of pickles stops the opening, and the error says how to allow it."""
    _write_raw(tmp_path, "pkl", [_sample_bytes(b"cos\nsystem\n(S'true'\ntR.")])

    with pytest.raises(ConfigurationError, match=r"column 'x' .* allow_pickle"):
        open_dataset(str(tmp_path))


def test_types_that_no_type_holds_are_refused_by_name(tmp_path: Path) -> None:
    """Shards whose column is a number here and a text there name the column and both types."""
    write_mds(tmp_path, pa.table({"x": [1]}), folder="a")
    write_mds(tmp_path, pa.table({"x": ["one"]}), folder="b")

    with pytest.raises(UnsupportedColumnError, match="'x' is int64 in some shards and string"):
        open_dataset(str(tmp_path))


def test_no_flipped_byte_of_a_hashed_shard_is_missed(tmp_path: Path) -> None:
    """Whatever byte of a shard with a hash is changed, its samples are refused."""
    write_mds(tmp_path, texts(3), hashes=["xxh64"])
    path = _shard_zero(tmp_path)
    content = path.read_bytes()
    with open_dataset(str(tmp_path)) as dataset:
        for place in range(0, len(content), 7):
            path.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])

            with pytest.raises(ShardCorruptError):
                dataset.read_block(0)


def test_no_flipped_byte_crashes_the_decoder(tmp_path: Path) -> None:
    """Without a hash a changed byte is an error of ours or another value, and nothing else."""
    schema = [
        pa.field("list", pa.list_(pa.field("item", pa.int32(), nullable=False))),
        pa.field("text", pa.string()),
        pa.field("float", pa.float64(), metadata={ENCODING_KEY: b"str_float"}),
    ]
    table = pa.table([[[1], [2, 3]], ["ä", "b"], [0.5, -1e300]], schema=pa.schema(schema))
    write_mds(tmp_path, table)
    path = _shard_zero(tmp_path)
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (0x01, 0x80):
            changed = bytearray(content)
            changed[place] ^= bit
            path.write_bytes(changed)
            refused = contextlib.suppress(ShardCorruptError, ManifestCorruptError)
            with refused, open_dataset(str(tmp_path)) as dataset:
                dataset.read_block(0).validate(full=True)
