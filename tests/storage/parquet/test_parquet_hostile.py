"""Files that are damaged, cut off or full of lies end in a typed error with the place."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    NotADatasetError,
    ShardCorruptError,
    UnsupportedColumnError,
)
from headrace.storage.parquet import open_parquet
from storage.parquet.hostile_files import honest_but
from storage.parquet.parquet_cases import all_samples, random_table, table_of, write_file


def _read(tmp_path: Path, content: bytes) -> pa.Table:
    path = tmp_path / "evil.parquet"
    path.write_bytes(content)
    return _samples_at(path)


def test_honest_file_of_the_same_making_is_read(tmp_path: Path) -> None:
    """What the hostile files are made of is a valid file, so it is the lie that is refused."""
    assert [0, 1, 2, 3, 4] == _read(tmp_path, honest_but()).column("n").to_pylist()


_TAIL = struct.pack("<I", 10) + b"PAR1"

_HOSTILE: dict[str, tuple[bytes, type[HeadraceError]]] = {
    "01 empty": (b"", ShardCorruptError),
    "02 magic alone": (b"PAR1", ShardCorruptError),
    "03 text": (b"id,name\n1,rose\n" * 9, ShardCorruptError),
    "04 cut off": (honest_but()[:-5], ShardCorruptError),
    "05 footer longer than the file": (
        b"PAR1" + struct.pack("<I", 99) + b"PAR1",
        ShardCorruptError,
    ),
    "06 footer of no bytes": (b"PAR1" + bytes(9) + b"PAR1", ShardCorruptError),
    "07 footer of 4 GiB": (b"PAR1" + bytes(99) + b"\xff\xff\xff\xffPAR1", ShardCorruptError),
    "08 encrypted": (b"PAR1" + bytes(99) + struct.pack("<I", 9) + b"PARE", ConfigurationError),
    "09 footer of noise": (b"PAR1" + bytes(range(1, 100)) + _TAIL, ShardCorruptError),
    "10 no data before the footer": (b"PAR1" + honest_but()[100:], ShardCorruptError),
    "11 chunk past the end": (honest_but(chunk_bytes=10**9), ShardCorruptError),
    "12 chunk before the start": (honest_but(page_offset=-8), ShardCorruptError),
    "13 chunk of negative length": (honest_but(chunk_bytes=-1), ShardCorruptError),
    "14 chunk in the footer": (honest_but(page_offset=80), ShardCorruptError),
    "15 more rows than row groups have": (honest_but(file_rows=6), ShardCorruptError),
    "16 more rows than pages have": (honest_but(group_rows=6, file_rows=6), ShardCorruptError),
    "17 negative rows": (honest_but(group_rows=-5, file_rows=-5), HeadraceError),
    "18 a trillion rows": (honest_but(group_rows=10**12, file_rows=10**12), ConfigurationError),
    "19 a terabyte before compression": (honest_but(raw_bytes=10**12), ConfigurationError),
    "20 negative bytes before compression": (honest_but(raw_bytes=-7), ConfigurationError),
    "21 row groups over one another": (honest_but(row_groups=3, file_rows=15), ShardCorruptError),
    "22 a page of 2 GiB before compression": (
        honest_but(page_raw_bytes=2**31 - 1, codec=1),
        ShardCorruptError,
    ),
    "23 a page longer than its chunk": (honest_but(page_bytes=4000), ShardCorruptError),
    "24 a page of negative length": (honest_but(page_bytes=-4), ShardCorruptError),
    "25 a codec that is none": (honest_but(codec=99), HeadraceError),
    "26 groups in groups": (honest_but(depth=20_000), HeadraceError),
    "27 a column without a name": (honest_but(name=b""), UnsupportedColumnError),
    "28 a name that is not UTF-8": (honest_but(name=b"\xff\xfe"), HeadraceError),
}


@pytest.mark.parametrize("name", list(_HOSTILE))
def test_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    """The file is refused with its kind of error, and its name is in the message."""
    content, kind = _HOSTILE[name]

    with pytest.raises(kind) as caught:
        _read(tmp_path, content)

    assert "evil.parquet" in caught.value.message or isinstance(
        caught.value, UnsupportedColumnError | NotADatasetError
    )


def test_flipped_byte_of_a_page_is_located(tmp_path: Path) -> None:
    """A page whose checksum fails is an error with file, row group, column and byte."""
    path = write_file(tmp_path / "a.parquet", random_table(1000), row_group_size=500)
    group = pq.read_metadata(path).row_group(1)
    chunk = group.column(1)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    with open_parquet(str(path)) as dataset:
        _flip(path, start + chunk.total_compressed_size - 10, 0x40)

        with pytest.raises(ShardCorruptError, match="column 'label' cannot be read") as caught:
            dataset.read_block(1)

    assert {"shard": "a.parquet", "row_group": "1", "offset": str(start)} == caught.value.metadata


def test_damaged_footer_of_an_open_dataset_is_noticed(tmp_path: Path) -> None:
    """A footer that changed since it was indexed is refused by its digest."""
    path = write_file(tmp_path / "a.parquet", table_of(range(10)))
    with open_parquet(str(path)) as dataset:
        _flip(path, path.stat().st_size - 60, 1)

        with pytest.raises(ShardCorruptError, match="footer has digest"):
            dataset.read_block(0)


def test_text_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    """A string column of bytes that are not text does not reach a trainer."""
    buffers = [None, pa.py_buffer(struct.pack("<2i", 0, 2)), pa.py_buffer(b"\xff\xfe")]
    table = pa.table({"s": pa.Array.from_buffers(pa.string(), 1, buffers)})
    path = write_file(tmp_path / "a.parquet", table)

    with (
        open_parquet(str(path)) as dataset,
        pytest.raises(ShardCorruptError, match=r"a\.parquet, row group 0.*UTF8"),
    ):
        dataset.read_block(0)


def test_dictionary_bomb_is_refused(tmp_path: Path) -> None:
    """A value of 1 MB that 10,000 rows share is measured before it is decoded to 10 GB."""
    column = pa.DictionaryArray.from_arrays(
        pa.array([0] * 10_000, pa.int32()), pa.array(["x" * 1_000_000])
    )
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": column}), path, store_schema=False)
    before = pa.default_memory_pool().max_memory() or 0

    with (
        open_parquet(str(path)) as dataset,
        pytest.raises(ConfigurationError, match=r"'s' of a row group of file a\.parquet"),
    ):
        dataset.read_block(0)

    assert path.stat().st_size < 2_000_000
    assert (pa.default_memory_pool().max_memory() or 0) < before + 100_000_000


def test_large_dictionary_is_decoded(tmp_path: Path) -> None:
    """Text whose dictionary is measured first has the same values in the end."""
    words = [f"{value % 5000:0600d}" for value in range(20_000)]
    table = pa.table({"s": words, "n": pa.array([None, *words[1:]])})
    path = write_file(tmp_path / "a.parquet", table, row_group_size=20_000)

    with open_parquet(str(path)) as dataset:
        assert table.to_pylist() == all_samples(dataset).to_pylist()
        assert [pa.string()] * 2 == dataset.schema.types


def test_noise_as_arrow_schema_is_refused_or_ignored(tmp_path: Path) -> None:
    """The Arrow schema that a footer may carry is not trusted."""
    table = table_of(range(3)).replace_schema_metadata({"ARROW:schema": "/////noise" * 9})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)

    found = _outcome(lambda: _samples_at(tmp_path))

    if isinstance(found, HeadraceError):
        assert "a.parquet" in found.message
    else:
        assert table.to_pylist() == found.to_pylist()


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the file whose bytes are flipped."""
    table = random_table(300).append_column("text", table_of(range(300)).column("text"))
    return write_file(tmp_path_factory.mktemp("fuzz") / "a.parquet", table)


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed_or_harmless(fuzzed: Path, place: int, bit: int) -> None:
    """A bit that flips in a file with page checksums is an error, or changes no sample."""
    wanted = pq.read_table(fuzzed)
    with open_parquet(str(fuzzed)) as dataset:
        place %= fuzzed.stat().st_size
        _flip(fuzzed, place, 1 << bit)
        found = _outcome(lambda: all_samples(dataset))
        _flip(fuzzed, place, 1 << bit)

    if isinstance(found, HeadraceError):
        assert "a.parquet" in found.message
    else:
        assert wanted.to_pylist() == found.to_pylist()


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7), cut=st.booleans())
def test_any_damage_before_opening_is_a_typed_error(
    fuzzed: Path, place: int, bit: int, *, cut: bool
) -> None:
    """A file that is damaged or cut off when it is opened is read or refused, nothing else."""
    content = bytearray(fuzzed.read_bytes())
    place %= len(content)
    path = fuzzed.parent / "damaged" / "a.parquet"
    path.parent.mkdir(exist_ok=True)
    content[place] ^= 1 << bit
    path.write_bytes(content[:place] if cut else content)

    found = _outcome(lambda: _samples_at(path))

    assert isinstance(found, pa.Table | HeadraceError)


def _samples_at(path: Path) -> pa.Table:
    with open_parquet(str(path)) as dataset:
        return all_samples(dataset)


def _outcome(call: Callable[[], pa.Table]) -> pa.Table | HeadraceError:
    """Return what a call returns, or the typed error that it raises."""
    try:
        return call()
    except HeadraceError as error:
        return error


def _flip(path: Path, place: int, mask: int) -> None:
    """Flip bits of a file and leave its time as it was, as a failing disk does."""
    state = path.stat()
    content = bytearray(path.read_bytes())
    content[place] ^= mask
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
