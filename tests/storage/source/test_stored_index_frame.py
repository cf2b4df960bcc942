"""The frame of a stored index is golden, and what is not of its form is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import ManifestCorruptError
from headrace.storage.source.stored_index_frame import (
    IndexContents,
    PackedForm,
    as_index_damage,
    pack,
    unpack,
)

_FORM = PackedForm(
    magic=b"HRTEST0",
    version=7,
    schema=pa.schema([pa.field("n", pa.int64(), nullable=False)]),
)
_GOLDEN = bytes.fromhex(
    "4852544553543007ba4438ee24be25562144f0ab9ec35cc28a0200000000000028b52ffd608a019d070072cb"
    "222a9039cd01f99d3e55ffffdffad76cb78b8c29fabbed99d89b23cc7ccfd7bf6bf56f6e937709359264cb14"
    "11ca248a24af909882a0751a9f2f5b30076f209b21dbe2031881c0eee8aa07dc613a8ebbcfe370a94854c154"
    "912c056962f8e321200a1230802e95c56ab0a685ca42410f7f06ee5ef7777642fb6bec9b2e63e363f39d4f5c"
    "d7751da14ca248122c2060825168ce07abd3a42095b0852069b324ee66a2dc1dd8f023b266da3b3b195d8030"
    "ce337e907d3e6279032270e4d0067aef93f552999a5be2b4db5877272b89bbcebce55875fa6dfc1d792ec077"
    "b601793b9a2d22ae9f47b97c7fedaf609cdfb75864"
)


def test_frame_is_golden() -> None:
    """Stored bytes give their table and facts for ever, as what is stored of them does."""
    found = unpack(_FORM, _GOLDEN)

    assert {"fingerprint": "f"} == found.facts
    assert [3, 1] == found.batch.column("n").to_pylist()
    assert found.batch.equals(unpack(_FORM, pack(_FORM, found)).batch)


@pytest.mark.parametrize("place", range(0, len(_GOLDEN), 7))
def test_any_changed_byte_is_refused(place: int) -> None:
    """A flipped bit anywhere is damage, with what to type."""
    content = bytearray(_GOLDEN)
    content[place] ^= 1

    with (
        pytest.raises(ManifestCorruptError, match=r"index here: .*`headrace index`"),
        as_index_damage("here"),
    ):
        unpack(_FORM, bytes(content))


def test_an_older_form_is_refused_by_its_number() -> None:
    """An index that an older headrace stored says which version it has and what to type."""
    content = _GOLDEN[:7] + bytes([6]) + _GOLDEN[8:]

    with (
        pytest.raises(ManifestCorruptError, match="version 6 found, but this headrace reads 7"),
        as_index_damage("here"),
    ):
        unpack(_FORM, content)


def test_columns_beside_the_form_need_its_prefix() -> None:
    """Further columns are taken where the form has some, by their prefix alone."""
    schema = pa.schema([*_FORM.schema, pa.field("k:a", pa.string())])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array([None], pa.string())], schema=schema
    )
    wide = PackedForm(magic=b"HRTEST0", version=7, schema=_FORM.schema, more="k:")
    content = pack(wide, IndexContents({}, batch))

    assert [None] == unpack(wide, content).batch.column("k:a").to_pylist()
    with pytest.raises(ValueError, match=r"columns .* found, .* expected"):
        unpack(_FORM, content)
