"""A stored index saves the footers and notices every change of the files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import (
    HeadraceError,
    ManifestCorruptError,
    ObjectNotFoundError,
    ShardCorruptError,
)
from headrace.storage.parquet import (
    ParquetIndex,
    decode_index,
    encode_index,
    open_parquet,
)
from storage.parquet.hostile_files import honest_but
from storage.parquet.parquet_cases import all_samples, table_of, write_file


def _indexed(folder: Path) -> ParquetIndex:
    with open_parquet(str(folder)) as dataset:
        return decode_index(encode_index(dataset.index), place="here")


def _partitioned(folder: Path) -> Path:
    write_file(folder / "k=a" / "1.parquet", table_of(range(250)))
    write_file(folder / "k=b" / "1.parquet", table_of(range(250, 300)))
    return folder


def test_fingerprint_is_golden(tmp_path: Path) -> None:
    """A file of fixed bytes, in a partition, has this fingerprint for ever."""
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "a.parquet").write_bytes(honest_but())

    assert "f555339a6f49106ab8f46e4b38845b9b" == _indexed(tmp_path).fingerprint


def test_index_opens_the_same_dataset(tmp_path: Path) -> None:
    """With an index a dataset has the fingerprint, the schema and the samples it has without."""
    _partitioned(tmp_path)
    index = _indexed(tmp_path)

    with open_parquet(str(tmp_path)) as plain, open_parquet(str(tmp_path), index=index) as indexed:
        assert plain.fingerprint == indexed.fingerprint
        assert plain.schema.equals(indexed.schema)
        assert all_samples(plain).equals(all_samples(indexed))


def test_index_reads_no_footer_to_open(tmp_path: Path) -> None:
    """Opening with an index calls no progress: there are no footers to read."""
    index = _indexed(_partitioned(tmp_path))
    heard: list[int] = []

    open_parquet(str(tmp_path), index=index, progress=lambda done, _: heard.append(done)).close()

    assert [] == heard


def test_later_files_are_left_out(tmp_path: Path) -> None:
    """A file that came after the index is no part of the version that the index holds."""
    index = _indexed(_partitioned(tmp_path))
    write_file(tmp_path / "k=c" / "1.parquet", table_of(range(5)))

    with open_parquet(str(tmp_path), index=index) as dataset:
        assert 300 == dataset.sample_count


def test_changed_file_is_named(tmp_path: Path) -> None:
    """A file of another time or size is an error that names it, and tells neither of the two."""
    index = _indexed(_partitioned(tmp_path))
    changed = tmp_path / "k=b" / "1.parquet"

    os.utime(changed, ns=(1, 1))
    with pytest.raises(ShardCorruptError, match=r"k=b/1\.parquet.*it has another version; reopen"):
        open_parquet(str(tmp_path), index=index)
    changed.write_bytes(changed.read_bytes() + b"more")
    with pytest.raises(ShardCorruptError, match=r"k=b/1\.parquet.*it has another size; reopen"):
        open_parquet(str(tmp_path), index=index)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """A file of the index that is gone is an ObjectNotFoundError."""
    index = _indexed(_partitioned(tmp_path))
    (tmp_path / "k=b" / "1.parquet").unlink()

    with pytest.raises(ObjectNotFoundError, match=r"k=b/1\.parquet"):
        open_parquet(str(tmp_path), index=index)


def test_index_is_stable_and_readable_by_arrow(tmp_path: Path) -> None:
    """Two indexes of the same files are equal bytes; the rest is an Arrow file in ZSTD."""
    _partitioned(tmp_path)
    with open_parquet(str(tmp_path)) as one, open_parquet(str(tmp_path)) as two:
        content = encode_index(one.index)

        assert content == encode_index(two.index)
    size = int.from_bytes(content[24:32], "little")
    raw = pa.decompress(content[32:], decompressed_size=size, codec="zstd")
    names = pa.ipc.open_file(raw).read_all().column("name").to_pylist()
    assert ["k=a/1.parquet", "k=b/1.parquet"] == names


@settings(max_examples=80, deadline=None)
@given(place=st.integers(0, 10**9), flip=st.integers(1, 255), cut=st.booleans())
def test_damaged_index_is_refused(place: int, flip: int, *, cut: bool) -> None:
    """Any flipped byte and any cut make a ManifestCorruptError."""
    content = bytearray(_content())
    place %= len(content)
    if cut:
        del content[place:]
    else:
        content[place] ^= flip

    with pytest.raises(ManifestCorruptError, match="index here"):
        decode_index(bytes(content), place="here")


def test_next_version_says_so() -> None:
    """An index of a version to come is refused with both numbers."""
    content = bytearray(_content())
    content[7] = 9

    with pytest.raises(ManifestCorruptError, match="version 9 found, but this headrace reads 2"):
        decode_index(bytes(content), place="here")


def test_index_with_lies_is_refused(tmp_path: Path) -> None:
    """An index that was changed and sealed again is held against its fingerprint."""
    with open_parquet(str(_partitioned(tmp_path))) as dataset:
        index = dataset.index
        groups = index.row_groups.copy()
        groups["sample_count"][0] += 1
        lying = ParquetIndex(
            schema=index.schema,
            physical=index.physical,
            table_version=None,
            files=index.files,
            constants=index.constants,
            deleted={0: np.array([3])},
            row_groups=groups,
            fingerprint=index.fingerprint,
        )

    with pytest.raises(HeadraceError, match=r"fingerprint|impossible"):
        decode_index(encode_index(lying), place="here")


_CONTENTS: list[bytes] = []


def _content() -> bytes:
    if not _CONTENTS:
        import tempfile  # noqa: PLC0415 - hypothesis and function fixtures do not mix

        with (
            tempfile.TemporaryDirectory() as folder,
            open_parquet(str(_partitioned(Path(folder)))) as dataset,
        ):
            _CONTENTS.append(encode_index(dataset.index))
    return _CONTENTS[0]
