"""MDS columns of arrays that differ in type and in number of axes are read as they are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.client import NumpyDataset
from headrace.converter import convert_files
from headrace.errors import ShardCorruptError
from headrace.storage import OpenDataset, SourceOptions, open_dataset
from headrace.storage.mds.encoding import ARRAY_DTYPES
from storage.mds.mds_make import change_index, index_of, take_descriptions_away, write_mds
from storage.mds.mosaic_environment import mosaic
from support.running import server_of

Array = NDArray[Any]
_MIXED = SourceOptions(mixed_arrays=True)
_CODES = {dtype: code for code, dtype in ARRAY_DTYPES.items()}


def _stored(array: Array, *, has_type: bool) -> bytes:
    """Return an array as Mosaic's writer stores it."""
    power = next(p for p in range(4) if max(array.shape) < 1 << (8 << p))
    code = bytes([_CODES[array.dtype]]) if has_type else b""
    sides = b"".join(struct.pack(f"<{'BHIQ'[power]}", side) for side in array.shape)
    return code + bytes([array.ndim << 2 | power]) + sides + array.tobytes()


def _write(
    folder: Path, arrays: Sequence[Array], *, encoding: str = "ndarray", size_limit: int = 1 << 26
) -> None:
    """Write them as bytes, and let the index say what they are."""
    table = pa.table({"x": [_stored(array, has_type=encoding == "ndarray") for array in arrays]})
    write_mds(folder, table, size_limit=size_limit)
    count = len(index_of(folder)["shards"])
    change_index(folder, {("shards", at, "column_encodings", 0): encoding for at in range(count)})
    take_descriptions_away(folder)


def _arrays(dataset: OpenDataset) -> list[Array]:
    """Return the arrays of a dataset, by the words of docs/mds.md alone."""
    found = []
    for block in range(dataset.block_count):
        for value in dataset.read_block(block).column("x"):
            parts = dict(value)
            shape = parts["shape"].as_py()
            if "dtype" in parts:
                kind = np.dtype(parts["dtype"].as_py()).newbyteorder("<")
                found.append(np.frombuffer(parts["data"].as_py(), kind).reshape(shape))
            else:
                found.append(parts["data"].values.to_numpy().reshape(shape))
    return found


def _same(one: Sequence[Array], other: Sequence[Array]) -> bool:
    return len(one) == len(other) and all(
        a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
        for a, b in zip(one, other, strict=True)
    )


_SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def _any_arrays(draw: st.DrawFn, *, one_type: bool) -> list[Array]:
    kinds = list(ARRAY_DTYPES.values())
    only = draw(st.sampled_from(kinds))
    arrays = []
    for shape in draw(st.lists(_SHAPES, min_size=1, max_size=12)):
        kind = only if one_type else draw(st.sampled_from(kinds))
        size = int(np.prod(shape)) * kind.itemsize
        arrays.append(
            np.frombuffer(draw(st.binary(min_size=size, max_size=size)), kind).reshape(shape)
        )
    return arrays


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrays=_any_arrays(one_type=False))
def test_any_arrays_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[Array]
) -> None:
    """Types, shapes and bytes, those of NaN too, from several shards."""
    folder = tmp_path_factory.mktemp("mixed")
    _write(folder, arrays, size_limit=600)

    with open_dataset(str(folder), source_options=_MIXED) as dataset:
        assert _same(arrays, _arrays(dataset))


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(arrays=_any_arrays(one_type=True))
def test_arrays_of_one_type_keep_it(
    tmp_path_factory: pytest.TempPathFactory, arrays: list[Array]
) -> None:
    """Where the encoding states the type, only the number of axes can differ."""
    folder = tmp_path_factory.mktemp("ranks")
    _write(folder, arrays, encoding=f"ndarray:{arrays[0].dtype.name}", size_limit=600)

    with open_dataset(str(folder), source_options=_MIXED) as dataset:
        assert ["data", "shape"] == [field.name for field in dataset.schema.field("x").type]
        assert _same(arrays, _arrays(dataset))


_MIX: list[Array] = [
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.array([1.5, np.nan], np.float64),
    np.full((300, 1, 2), 7, np.uint8),
]


def _kinds(folder: Path, **options: Any) -> list[str]:
    with open_dataset(str(folder), source_options=SourceOptions(**options)) as dataset:
        kind = dataset.schema.field("x").type
        return [field.name for field in kind] if pa.types.is_struct(kind) else [str(kind)]


def test_a_look_at_the_samples_tells_what_is_mixed(tmp_path: Path) -> None:
    """Nothing need be said of a small dataset; and columns of one kind are what they were."""
    _write(tmp_path / "types", _MIX * 5)
    _write(tmp_path / "ranks", [_MIX[0], _MIX[0][0]] * 5)
    _write(tmp_path / "ragged", [_MIX[0][0], _MIX[0][0, :2]])
    _write(tmp_path / "shards", _MIX * 5, size_limit=600)

    assert ["data", "shape", "dtype"] == _kinds(tmp_path / "types") == _kinds(tmp_path / "shards")
    assert ["data", "shape"] == _kinds(tmp_path / "ranks")
    assert ["list<item: int32 not null>"] == _kinds(tmp_path / "ragged")


def test_what_the_look_has_missed_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """One array of another type among many blocks: said where, and read by the option."""
    plain: list[Array] = [np.zeros(1 << 18, np.float32)] * 80
    odd = [*plain[:50], np.zeros((2, 2), np.int8), *plain[50:]]
    _write(tmp_path, odd)
    with open_dataset(str(tmp_path)) as dataset:
        block = int(dataset.locate(np.array([50]))[0][0])
        with pytest.raises(ShardCorruptError, match=r"SourceOptions\(mixed_arrays=True\)"):
            dataset.read_block(block)
    with open_dataset(str(tmp_path), source_options=_MIXED) as dataset:
        batch = dataset.read_block(int(dataset.locate(np.array([50]))[0][0]))

    assert "int8" in [value["dtype"].as_py() for value in batch.column("x")]


def test_a_trainer_and_a_conversion_get_them(tmp_path: Path) -> None:
    """Flat columns of bytes, sides and names of types, from a server; and the same converted."""
    _write(tmp_path / "mds", _MIX * 4)
    convert_files(str(tmp_path / "mds"), str(tmp_path / "own"), source_format="mds")
    with open_dataset(str(tmp_path / "own")) as dataset:
        assert _same(_MIX * 4, _arrays(dataset))

    with server_of({"d": str(tmp_path / "mds")}) as server:
        [batch] = NumpyDataset(server.address, "d", batch_size=12, shuffle=False, epochs=1)
    found = [
        np.frombuffer(data, np.dtype(kind)).reshape(shape)
        for data, shape, kind in zip(
            batch["x.data"], batch["x.shape"], batch["x.dtype"], strict=True
        )
    ]

    assert _same(_MIX * 4, found)


@pytest.mark.long
@pytest.mark.timeout(1500)  # of which most is for making the environment
def test_what_mosaic_writes_is_read(tmp_path: Path) -> None:
    """Every type and up to five axes, in several shards, as the real package stores them."""
    chance = np.random.default_rng(17)
    arrays: list[Array] = []
    for kind in [*ARRAY_DTYPES.values()] * 5:
        shape = chance.integers(1, 5, size=chance.integers(1, 6))
        size = int(shape.prod()) * kind.itemsize
        arrays.append(np.frombuffer(chance.bytes(size), kind).reshape(shape))
    named: dict[str, Any] = {f"{at:03}": array for at, array in enumerate(arrays)}
    np.savez(tmp_path / "arrays.npz", **named)
    mosaic().write_mixed(tmp_path / "mds", tmp_path / "arrays.npz")

    with open_dataset(str(tmp_path / "mds")) as dataset:
        assert dataset.shard_count > 1
        assert _same(arrays, _arrays(dataset))
