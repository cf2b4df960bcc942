"""Any samples, in any pieces, come back from shards as they were."""

from __future__ import annotations

import itertools
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ShardCorruptError
from headrace.storage import (
    Compression,
    ShardWriter,
    commit_dataset,
    open_dataset,
    open_store,
    sample_bytes,
)
from headrace.storage.dataset.dataset import Dataset
from headrace.storage.shard.arrow_message import message_size

_NOISE_BYTES = 200_000
_NOISE = np.random.default_rng(1).bytes(_NOISE_BYTES)
_INTS = st.integers(-(2**31), 2**31 - 1)
_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "int": (pa.int32(), _INTS),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=20)),
    "large": (pa.large_string(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "fixed": (pa.list_(pa.int32(), 2), st.lists(_INTS, min_size=2, max_size=2)),
    "list": (pa.list_(pa.int32()), st.lists(_INTS, max_size=5)),
    "nested": (pa.list_(pa.list_(pa.string())), st.lists(st.lists(st.text(max_size=3)))),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.binary())]),
        st.fixed_dictionaries({"a": _INTS, "b": st.binary(max_size=5)}),
    ),
    "decimal": (pa.decimal128(9, 2), st.decimals(-1000, 1000, places=2)),
    "timestamp": (pa.timestamp("us"), st.datetimes()),
}


@st.composite
def _batches(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(_COLUMNS)), min_size=1, max_size=4, unique=True))
    count = draw(st.integers(1, 60))
    columns = {
        name: draw(
            st.lists(st.none() | _COLUMNS[name][1], min_size=count, max_size=count), label=name
        )
        for name in names
    }
    schema = pa.schema([pa.field(name, _COLUMNS[name][0]) for name in names])
    return pa.RecordBatch.from_pydict(columns, schema=schema)


@settings(max_examples=60, deadline=None)
@given(
    batch=_batches(),
    cuts=st.lists(st.integers(0, 60), max_size=4),
    block_bytes=st.integers(1, 600),
    compression=st.sampled_from(["lz4", "zstd", "none"]),
)
def test_samples_survive_any_cutting(
    batch: pa.RecordBatch, cuts: list[int], block_bytes: int, compression: Compression
) -> None:
    """Whatever batches the writer gets and whatever blocks it cuts, the samples are the same."""
    edges = sorted({0, batch.num_rows, *(cut for cut in cuts if cut < batch.num_rows)})
    with TemporaryDirectory() as folder:
        store = open_store(folder)
        with ShardWriter(
            store, "a", schema=batch.schema, compression=compression, block_bytes=block_bytes
        ) as writer:
            for start, stop in itertools.pairwise(edges):
                writer.append(batch.slice(start, stop - start))
            entry = writer.close()
        commit_dataset(store, batch.schema, [entry])
        with open_dataset(folder) as dataset:
            found = [dataset.read_block(block) for block in range(dataset.block_count)]

    assert batch.to_pylist() == pa.Table.from_batches(found).to_pylist()
    for block in found:
        sizes = sample_bytes(block)
        assert sizes.sum() - sizes.max() <= 4 * block_bytes


@pytest.mark.parametrize(
    ("content", "compression", "is_compressed"),
    [
        pytest.param(_NOISE, "lz4", False, id="noise"),
        pytest.param(_NOISE, "zstd", True, id="noise, and asked for"),
        pytest.param(bytes(_NOISE_BYTES), "lz4", True, id="zeros"),
        pytest.param(_NOISE[:1000], "lz4", True, id="too little to tell"),
    ],
)
def test_what_lz4_cannot_shrink_is_stored_as_it_is(
    tmp_path: Path, content: bytes, compression: Compression, *, is_compressed: bool
) -> None:
    """Unless another codec is asked for; and a block in which any byte is changed is refused."""
    batch = pa.RecordBatch.from_pydict({"image": [content, None, content[:9]]})
    store = open_store(str(tmp_path))
    with ShardWriter(store, "a", schema=batch.schema, compression=compression) as writer:
        writer.append(batch)
        entry = writer.close()
    commit_dataset(store, batch.schema, [entry])

    with open_dataset(str(tmp_path)) as dataset:
        assert isinstance(dataset, Dataset)
        stored, found = dataset.read_stored(0)
        assert batch.to_pylist() == found.to_pylist()
        size = message_size(pa.ipc.read_message(pa.py_buffer(stored)))
        assert is_compressed == size.is_compressed
        for at in range(0, len(stored), max(1, len(stored) // 50)):
            damaged = bytearray(stored)
            damaged[at] ^= 1
            with pytest.raises(ShardCorruptError, match="checksum"):
                dataset.decode_stored(0, bytes(damaged))
        with pytest.raises(ShardCorruptError, match="bytes found"):
            dataset.decode_stored(0, stored[:-1])


@settings(max_examples=60, deadline=None)
@given(batch=_batches(), start=st.integers(0, 59), stop=st.integers(0, 60))
def test_raw_bytes_do_not_depend_on_slicing(batch: pa.RecordBatch, start: int, stop: int) -> None:
    """A slice's samples have the raw bytes that they have in the whole."""
    whole = sample_bytes(batch)

    part = sample_bytes(batch.slice(start, max(0, stop - start)))

    assert whole[start : max(start, stop)].tolist() == part.tolist()


def test_raw_bytes_are_as_documented() -> None:
    """Widths, lengths and offsets are counted, validity is not."""
    types: dict[str, pa.DataType] = {
        "i": pa.int16(),
        "b": pa.bool_(),
        "s": pa.string(),
        "l": pa.list_(pa.int64()),
        "f": pa.list_(pa.int8(), 2),
    }
    batch = pa.RecordBatch.from_pydict(
        {"i": [1, 2], "b": [True, None], "s": ["abc", ""], "l": [[1, 2], []], "f": [[1, 2], None]},
        schema=pa.schema(types),
    )

    assert [2 + 1 + 7 + 20 + 2, 2 + 1 + 4 + 4 + 2] == sample_bytes(batch).tolist()


def test_a_sample_larger_than_a_block_makes_a_large_block(tmp_path: Path) -> None:
    """One large sample between small ones lies in a block with as many others as they do."""
    values = [b"a", b"b", b"x" * 5000, b"c"]
    batch = pa.RecordBatch.from_pydict({"x": values})
    store = open_store(str(tmp_path))
    with ShardWriter(store, "a", schema=batch.schema, block_bytes=100) as writer:
        writer.append(batch)
        entry = writer.close()

    assert [3, 1] == entry.blocks["sample_count"].tolist()
    assert [5014, 5] == entry.blocks["raw_bytes"].tolist()
