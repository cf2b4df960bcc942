"""Whatever samples are written as MDS, the same ones are read."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadArgumentError, DatasetExistsError, UnsupportedColumnError
from headrace.storage import open_dataset, open_store
from headrace.storage.mds import ENCODING_KEY, MdsWriter, commit_mds
from storage.mds.mds_make import index_of, texts, write_mds
from storage.mds.mds_values import table_of

_ITEM = pa.field("item", pa.int16(), nullable=False)
_SIDES = pa.list_(pa.field("item", pa.int32(), nullable=False), 2)
_MATRIX = pa.struct(
    [pa.field("data", pa.list_(_ITEM), nullable=False), pa.field("shape", _SIDES, nullable=False)]
)


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def _matrices(draw: st.DrawFn) -> dict[str, list[int]]:
    shape = [draw(st.integers(0, 300)), draw(st.integers(0, 3))]
    value = draw(_integers(16))
    return {"data": [value] * (shape[0] * shape[1]), "shape": shape}


_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): _integers(8),
    pa.int64(): _integers(64),
    pa.uint16(): st.integers(0, 2**16 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    pa.binary(): st.binary(max_size=300),
    pa.list_(_ITEM): st.lists(_integers(16), max_size=300),
    pa.list_(_ITEM, 3): st.lists(_integers(16), min_size=3, max_size=3),
    _MATRIX: _matrices(),
}


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=6))
    count = draw(st.integers(1, 12))
    names = draw(
        st.lists(
            st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8),
            min_size=len(kinds),
            max_size=len(kinds),
            unique=True,
        )
    )
    columns = [
        pa.array(draw(st.lists(_VALUES[kind], min_size=count, max_size=count)), kind)
        for kind in kinds
    ]
    fields = [pa.field(name, kind, nullable=False) for name, kind in zip(names, kinds, strict=True)]
    return pa.table(columns, schema=pa.schema(fields))


@settings(max_examples=150, deadline=None)
@given(
    table=_tables(),
    compression=st.sampled_from([None, "br:1", "bz2", "gz", "snappy", "zstd"]),
    hashes=st.sampled_from([(), ("xxh3_64",), ("md5", "sha1")]),
    size_limit=st.integers(1, 3000),
    step=st.integers(1, 12),
)
def test_what_is_written_is_read(
    table: pa.Table,
    compression: str | None,
    hashes: tuple[str, ...],
    size_limit: int,
    step: int,
) -> None:
    """Values of all types come back equal, however samples are cut into batches and shards."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        with MdsWriter(
            store, table.schema, compression=compression, hashes=hashes, size_limit=size_limit
        ) as writer:
            for batch in table.to_batches(max_chunksize=step):
                writer.append(batch)
            commit_mds(store, writer.close())
        with open_dataset(folder) as dataset:
            found = table_of(dataset)

    wanted = table.select(sorted(table.column_names))
    assert wanted.equals(found.cast(wanted.schema))


def test_shards_stay_below_the_limit(tmp_path: Path) -> None:
    """A shard has at most the limit, and the next sample would have passed it."""
    write_mds(tmp_path, texts(500), size_limit=2000)

    sizes = [shard["raw_data"]["bytes"] for shard in index_of(tmp_path)["shards"]]
    assert max(sizes) <= 2000
    assert min(sizes[:-1]) > 2000 - 40


def test_a_sample_above_the_limit_has_a_shard_of_its_own(tmp_path: Path) -> None:
    """Samples larger than the limit are written, one a shard, and no shard is empty."""
    table = pa.table({"x": ["a" * 1000, "b", "c" * 1000]})
    write_mds(tmp_path, table, size_limit=500)

    with open_dataset(str(tmp_path)) as dataset:
        assert [1, 1, 1] == dataset.shard_sample_counts.tolist()
        assert table.column("x").to_pylist() == table_of(dataset).column("x").to_pylist()


def test_bools_and_decimals_become_what_mds_has(tmp_path: Path) -> None:
    """A bool is written as uint8, a decimal and bytes of one size as text and bytes."""
    table = pa.table(
        {
            "bool": pa.array([True, False]),
            "decimal": pa.array(["1.50", "-2.25"]).cast(pa.decimal128(10, 2)),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        }
    )
    write_mds(tmp_path, table)

    with open_dataset(str(tmp_path)) as dataset:
        assert {
            "bool": [1, 0],
            "decimal": ["1.50", "-2.25"],
            "fixed": [b"ab", b"cd"],
        } == table_of(dataset).to_pydict()


def test_tensors_of_several_axes_come_back(tmp_path: Path) -> None:
    """A fixed-shape tensor is read as a tensor of the same shape, from slices of batches too."""
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    array: pa.Array[Any] = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    write_mds(tmp_path, pa.table({"x": array}).slice(1))

    with open_dataset(str(tmp_path)) as dataset:
        column = dataset.read_block(0).column("x")
        assert isinstance(column, pa.FixedShapeTensorArray)
        assert values[1:].tolist() == column.to_numpy_ndarray().tolist()


def test_a_noted_encoding_is_written_again(tmp_path: Path) -> None:
    """A field that notes its encoding is written with it, where its type still is of it."""
    fields = [
        pa.field("fits", pa.int64(), metadata={ENCODING_KEY: b"int"}),
        pa.field("fits not", pa.int32(), metadata={ENCODING_KEY: b"int"}),
    ]
    write_mds(tmp_path, pa.table([[1], [1]], schema=pa.schema(fields)))

    assert ["int", "int32"] == index_of(tmp_path)["shards"][0]["column_encodings"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1, None]), "'x' contains 1 nulls"),
        (pa.array([[1, None]]), "nulls inside"),
        (pa.array([[[1], None]], pa.list_(pa.list_(pa.int8()))), "no encoding"),
        (pa.array([1], pa.timestamp("us")), "no encoding"),
        (pa.array([[]], pa.list_(pa.int8(), 0)), "no encoding"),
    ],
)
def test_what_mds_cannot_hold_is_refused(
    tmp_path: Path, column: pa.Array[Any], message: str
) -> None:
    """A null or a type without an encoding names the column, and nothing is written."""
    with pytest.raises(UnsupportedColumnError, match=message):
        write_mds(tmp_path, pa.table({"x": column}))
    assert not list(tmp_path.iterdir())


def test_leaving_without_close_removes_the_shards(tmp_path: Path) -> None:
    """A writer that fails leaves nothing behind."""
    table = texts(100)
    store = open_store(str(tmp_path))
    with MdsWriter(store, table.schema, size_limit=500) as writer:
        writer.append(table.to_batches()[0])
        written = len(list(tmp_path.glob("*.mds")))

    assert written > 3
    assert not list(tmp_path.glob("*.mds"))


def test_an_index_is_not_replaced_unasked(tmp_path: Path) -> None:
    """A second commit is refused, and the first stands; appended, it follows."""
    write_mds(tmp_path, texts(3), folder="a")
    table = texts(2, first=3)
    store = open_store(str(tmp_path))
    writer = MdsWriter(store, table.schema, folder="b")
    writer.append(table.to_batches()[0])
    shards = writer.close()

    with pytest.raises(DatasetExistsError, match="append"):
        commit_mds(store, shards)
    commit_mds(store, shards, mode="append")
    with pytest.raises(BadArgumentError, match="occurs twice"):
        commit_mds(store, shards, mode="append")
    with open_dataset(str(tmp_path)) as dataset:
        assert [0, 1, 2, 3, 4] == table_of(dataset).column("number").to_pylist()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"folder": "a/b"}, "folder"),
        ({"folder": ".."}, "name"),
        ({"compression": "lz4"}, "compression"),
        ({"compression": "gz:10"}, "compression"),
        ({"hashes": ["crc32"]}, "hashes"),
        ({"size_limit": 0}, "size_limit"),
        ({"size_limit": 2**32}, "size_limit"),
    ],
)
def test_a_bad_option_is_named(tmp_path: Path, options: dict[str, Any], field: str) -> None:
    """An option outside its range is refused before anything is written."""
    with pytest.raises(BadArgumentError) as caught:
        write_mds(tmp_path, texts(1), **options)

    assert field == caught.value.metadata["field"]
