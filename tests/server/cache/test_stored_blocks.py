"""Claims about stored blocks: the compiled loops write what decoding does, and take no other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server.cache.decode import DecodedBlock
from headrace.server.cache.memory.arena import Memory
from headrace.server.cache.stored_blocks import StoredBlock, stored_form
from headrace.server.layout.block_layout import BlockLayout, block_layout
from headrace.server.layout.wire_columns import split_schema
from headrace.storage import (
    Dataset,
    ShardWriter,
    commit_dataset,
    open_dataset,
    open_store,
)
from headrace.storage.shard.block import checksum_of

_ROWS = 500


def _lists(rng: np.random.Generator, item: pa.DataType, longest: int) -> pa.Array[Any]:
    edges = np.concatenate([[0], np.cumsum(rng.integers(0, longest, _ROWS))])
    values = pa.array(rng.integers(0, 100, int(edges[-1])), item)
    return pa.ListArray.from_arrays(pa.array(edges.tolist(), pa.int32()), values)


def _columns() -> dict[str, pa.Array[Any]]:
    rng = np.random.default_rng(7)
    wide = pa.array(rng.random(_ROWS * 200, dtype=np.float32))
    narrow = pa.array(rng.integers(0, 100, _ROWS * 6), pa.int16())
    return {
        "label": pa.array(rng.integers(0, 1 << 60, _ROWS)),
        "half": pa.array(rng.random(_ROWS).astype(np.float16)),
        "byte": pa.array(rng.integers(0, 255, _ROWS), pa.uint8()),
        "wide": pa.FixedSizeListArray.from_arrays(wide, 200),
        "nested": pa.FixedSizeListArray.from_arrays(
            pa.FixedSizeListArray.from_arrays(narrow, 2), 3
        ),
        "text": pa.array(["x" * (row % 7) for row in range(_ROWS)]),
        "image": pa.array([rng.bytes(row % 97) for row in range(_ROWS)]),
        "ids": _lists(rng, pa.int32(), 9),
        "same": pa.array([[row, 1, 2] for row in range(_ROWS)], pa.list_(pa.int64())),
    }


class _Written:
    """A table that was written as one block, and its form in the arena."""

    def __init__(
        self, folder: Path, table: pa.Table, compression: Literal["lz4", "zstd", "none"] = "none"
    ) -> None:
        store = open_store(str(folder))
        with ShardWriter(
            store, "00000.arrow", schema=table.schema, compression=compression
        ) as writer:
            writer.append(table.combine_chunks().to_batches()[0])
            entry = writer.close()
        commit_dataset(store, table.schema, [entry])
        store.close()
        dataset = open_dataset(str(folder))
        assert isinstance(dataset, Dataset)
        columns, refused = split_schema(dataset.schema)
        assert not refused
        self.layout = block_layout(columns)
        self.place = dataset.block_place(0)
        self.stored, self.batch = dataset.read_stored(0)
        self.form = stored_form(dataset.block_schema, self.layout)

    def verified(self, stored: bytes | None = None) -> StoredBlock | None:
        """Return what verifying makes of the block, or of other bytes with the right checksum."""
        place = self.place
        if stored is not None:
            place = dataclasses.replace(place, checksum=checksum_of(stored))
        assert self.form is not None
        (found,) = self.form.verify(self.stored if stored is None else stored, [place])
        return found


def _in_arena(block: DecodedBlock | StoredBlock) -> tuple[tuple[int, ...], bytes]:
    """Write a block to a place that is aligned to nothing; return its bases and all memory."""
    memory = Memory(np.zeros(block.size + 1000, np.uint8))
    if isinstance(block, DecodedBlock):
        return block.write(memory, 192), memory.array.tobytes()
    return _write(block, memory, 192), memory.array.tobytes()


def _write(block: StoredBlock, memory: Memory, start: int) -> tuple[int, ...]:
    (bases,) = block.run.write(memory, [block.row], [(start, block.size)])
    return bases


@pytest.mark.parametrize("names", [*([name] for name in _columns()), list(_columns())])
def test_what_is_written_is_that_of_decoding(tmp_path: Path, names: list[str]) -> None:
    """Bases, values, spans and padding are the same for every kind of column, and for all."""
    columns = _columns()
    written = _Written(tmp_path, pa.table({name: columns[name] for name in names}))
    decoded = DecodedBlock(written.layout, written.batch)

    found = written.verified()

    assert found is not None
    assert decoded.size == found.size
    assert _in_arena(decoded) == _in_arena(found)


def test_blocks_of_a_run_are_verified_each_on_its_own(tmp_path: Path) -> None:
    """A damaged block does not affect its neighbours, and padding lies between them."""
    written = _Written(tmp_path, pa.table({"image": _columns()["image"]}))
    size = len(written.stored)
    content = bytearray(written.stored + bytes(64) + written.stored + written.stored)
    content[size + 64 + size // 2] ^= 1
    starts = (0, size + 64, 2 * size + 64)
    assert written.form is not None

    found = written.form.verify(
        bytes(content),
        [
            dataclasses.replace(written.place, offset=written.place.offset + start)
            for start in starts
        ],
    )

    assert [True, False, True] == [block is not None for block in found]
    assert found[2] is not None
    decoded = DecodedBlock(written.layout, written.batch)
    assert _in_arena(decoded) == _in_arena(found[2])


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", None, "z"] * 200),
        pa.array([[1, None], [2]] * 200, pa.list_(pa.int32())),
    ],
    ids=["null", "null item"],
)
def test_unusual_blocks_are_decoded(tmp_path: Path, column: pa.Array[Any]) -> None:
    """Nulls are left to the other way."""
    assert _Written(tmp_path, pa.table({"x": column})).verified() is None


def test_other_codecs_are_decoded(tmp_path: Path) -> None:
    """So are blocks that are compressed with Zstandard."""
    table = pa.table({"x": pa.array(np.zeros(5000, np.int64))})

    assert _Written(tmp_path, table, "zstd").verified() is None


def _compressible() -> dict[str, pa.Array[Any]]:
    """Return columns whose LZ4 frames have long and short matches, near and far, and literals."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("abcdef"), 9).tolist()) for _ in range(40)]
    return {
        "zeros": pa.array(np.zeros(_ROWS * 50, np.int64)),
        "few": pa.array(rng.integers(0, 10, _ROWS * 50)),
        "cycle": pa.array(np.arange(_ROWS * 50) % 3, pa.int8()),
        "five": pa.array(list(b"abcde" * _ROWS * 10), pa.uint8()),
        "text": pa.array([" ".join(rng.choice(words, 12).tolist()) for _ in range(_ROWS * 5)]),
        "noise": pa.array(rng.integers(0, 1 << 60, _ROWS * 50)),
    }


@pytest.mark.parametrize("name", _compressible())
def test_compressed_blocks_are_expanded(tmp_path: Path, name: str) -> None:
    """LZ4 of one block and of several, and what it cannot compress, is as Arrow expands it."""
    # Next to zeros, or else what does not compress would be stored as it is.
    column = _compressible()[name]
    zeros = pa.array(np.zeros(len(column) * 4, np.int64))
    beside = pa.FixedSizeListArray.from_arrays(zeros, 4)
    written = _Written(tmp_path, pa.table({"x": column, "y": beside}), "lz4")
    assert len(written.stored) < written.place.raw_bytes
    decoded = DecodedBlock(written.layout, written.batch)

    found = written.verified()

    assert found is not None
    assert _in_arena(decoded) == _in_arena(found)


@settings(deadline=None, max_examples=200)
@given(content=st.binary(max_size=3000), repeats=st.integers(1, 2000), cut=st.integers(1, 64))
def test_what_lz4_makes_of_anything_is_expanded(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, repeats: int, cut: int
) -> None:
    """Values of any kind, repeated or not, are as Arrow expands them."""
    values = (content * repeats)[: 1 << 20]
    column = pa.array([values, values[cut:], b"", values[: len(values) // cut]], pa.binary())
    zeros = pa.array([bytes(1 << 17)] * 4, pa.binary())
    folder = tmp_path_factory.mktemp("any")
    written = _Written(folder, pa.table({"x": column, "y": zeros}), "lz4")
    decoded = DecodedBlock(written.layout, written.batch)

    found = written.verified()

    assert found is not None
    assert _in_arena(decoded) == _in_arena(found)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_text_of_any_script_is_taken(tmp_path: Path, compression: Literal["none", "lz4"]) -> None:
    """Characters of one to four bytes, the least and the greatest of each length."""
    texts = ["x", "\u00fc", "", "\u0080\u07ff", "\u0800\ud7ff\ue000\uffff", "\U00010000\U0010ffff"]
    table = pa.table({"x": pa.array([*texts, "plain text of some length \u00e9"] * 200)})
    written = _Written(tmp_path, table, compression)
    decoded = DecodedBlock(written.layout, written.batch)

    found = written.verified()

    assert found is not None
    assert _in_arena(decoded) == _in_arena(found)


@pytest.mark.parametrize(
    "rows",
    [
        [b"\x80"],
        [b"\xc0\x80"],
        [b"\xc1\xbf"],
        [b"\xe0\x9f\xbf"],
        [b"\xed\xa0\x80"],
        [b"\xf0\x8f\xbf\xbf"],
        [b"\xf4\x90\x80\x80"],
        [b"\xf5\x80\x80\x80"],
        [b"\xe2\x82"],
        [b"\xc3(", b"x" * 20],
        [b"\xc3", b"\xbc"],
        [b"x" * 20 + b"\xe2", b"\x82\xac"],
    ],
)
def test_text_that_is_not_utf8_is_not_taken(tmp_path: Path, rows: list[bytes]) -> None:
    """Neither what no row may hold, nor a character that lies in two rows."""
    many = [b"", *rows, b"valid"] * 50
    texts = [b"y" * len(row) for row in many]
    written = _Written(tmp_path, pa.table({"x": pa.array(texts, pa.binary()).cast(pa.string())}))
    joined = b"".join(texts)
    changed = written.stored.replace(joined, b"".join(many))

    assert written.stored.count(joined) == 1
    assert written.verified() is not None
    assert written.verified(changed) is None


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, False] * 50),
        pa.array([{"a": 1}] * 50),
        pa.array(["x"] * 50, pa.large_string()),
    ],
    ids=["bool", "struct", "large"],
)
def test_other_columns_have_no_form(column: pa.Array[Any]) -> None:
    """A dataset with a column that the loops cannot write is decoded."""
    assert stored_form(pa.schema([("x", column.type)]), _layout_of(column)) is None


def _layout_of(column: pa.Array[Any]) -> BlockLayout:
    schema = pa.schema([pa.field("x", column.type, nullable=False)])
    return block_layout(split_schema(schema)[0])


@pytest.fixture(scope="module", params=["none", "lz4"])
def several(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> _Written:
    """A block with a column of each kind."""
    columns = _columns()
    table = pa.table({name: columns[name] for name in ("label", "text", "same", "ids")})
    return _Written(tmp_path_factory.mktemp("several"), table, request.param)


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_hostile_blocks_are_refused_or_harmless(several: _Written, data: st.DataObject) -> None:
    """Whatever a block says, nothing is read beyond it or written beyond its extent."""
    # Metadata come first, then offsets or compressed values; the checksum is right, as an
    # attacker's is.
    changed = bytearray(several.stored)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 700) | st.integers(0, len(changed) - 1))
        changed[at] = data.draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, changed[at] ^ 4]))

    found = several.verified(bytes(changed))

    if found is not None:
        memory = Memory(np.full(found.size + 512, 0xAB, np.uint8))
        _write(found, memory, 256)
        assert (memory.array[:256] == 0xAB).all()
        assert (memory.array[256 + found.size :] == 0xAB).all()


def test_a_block_that_expands_too_far_is_not_taken(tmp_path: Path) -> None:
    """No more memory is taken than its raw bytes account for."""
    table = pa.table({"x": pa.array(np.zeros(500_000, np.int64))})
    written = _Written(tmp_path, table, "lz4")
    assert written.form is not None
    few = dataclasses.replace(written.place, raw_bytes=1000)

    assert written.verified() is not None
    assert [None] == written.form.verify(written.stored, [few])


@pytest.mark.parametrize("at", [0, 1000, -1])
def test_any_changed_byte_is_noticed(tmp_path: Path, at: int) -> None:
    """A block whose checksum is not that of the manifest is not taken."""
    written = _Written(tmp_path, pa.table({"image": _columns()["image"]}))
    changed = bytearray(written.stored)
    changed[at] ^= 0x10
    assert written.form is not None

    assert [None] == written.form.verify(bytes(changed), [written.place])


def test_a_block_is_not_written_beyond_its_extent(tmp_path: Path) -> None:
    """The loop refuses an extent that is too short."""
    written = _Written(tmp_path, pa.table({"image": _columns()["image"]}))
    found = written.verified()
    assert found is not None
    found.size -= 100

    with pytest.raises(ValueError, match="does not fit"):
        _write(found, Memory(np.zeros(1 << 20, np.uint8)), 0)
