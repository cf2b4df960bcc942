"""Columns by kind, and how batches and datasets say what they hold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

from headrace.client import Batch, RemoteDataset
from headrace.server import Server
from support.datasets import write_dataset
from support.running import server_of

COLUMNS = "x: (2,) float32, n: int64, n.valid: bool, t: str, b: bytes, r: ragged int32"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serve a dataset with a column of each kind."""
    folder = str(tmp_path_factory.mktemp("kinds") / "d")
    pairs = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(16, np.float32)), 2)
    lists = pa.array([[1], [2, 3]] * 4, pa.list_(pa.int32()))
    numbers = pa.array([1, None] * 4)
    table = pa.table({"x": pairs, "n": numbers, "t": ["a"] * 8, "b": [b"z"] * 8, "r": lists})
    write_dataset(folder, table, shard_samples=[8])
    with server_of({"d": folder}) as running:
        yield running


@pytest.fixture
def batch(server: Server) -> Batch:
    """Return a batch of four."""
    with RemoteDataset(server.address, "d", batch_size=4, shuffle=False) as dataset:
        return next(iter(dataset))


def test_columns_of_a_kind_are_those_of_the_batch(batch: Batch) -> None:
    """And no others; what a column is, is what the batch has under its name."""
    assert [["t"], ["b"], ["r"]] == [list(batch.texts), list(batch.blobs), list(batch.ragged)]
    assert dict(batch.items())["t"] is batch.texts["t"]
    assert ([b"z"] * 4, [0, 1, 3]) == (
        list(batch.blobs["b"]),
        batch.ragged["r"].offsets[:3].tolist(),
    )
    assert "x" not in batch.texts
    assert {"t": ["a"] * 4} == {name: list(column) for name, column in batch.texts.items()}


def test_a_column_of_another_kind_is_refused_with_its_own(batch: Batch) -> None:
    """The message says what the column has, and which columns are of the kind."""
    with pytest.raises(KeyError, match=r"'x' has \(4, 2\) float32; columns of str: t"):
        batch.texts["x"]
    with pytest.raises(KeyError, match="'y' is not there; columns of bytes: b"):
        batch.blobs["y"]


def test_a_batch_shows_names_shapes_and_types(batch: Batch) -> None:
    """So does one whose columns a framework took over, which has no place in the order."""
    shown = COLUMNS.replace("(2,)", "(4, 2)").replace("n: int64", "n: (4,) int64")
    shown = shown.replace("valid: bool", "valid: (4,) bool")

    assert f"Batch(epoch=0, step=0, position=0, samples=4, {shown})" == repr(batch)
    assert "Batch(x: (4, 2) float32)" == repr(Batch({"x": batch["x"]}))


def test_a_dataset_shows_what_a_sample_has_once_it_is_known(server: Server) -> None:
    """Nothing is asked of a server for it."""
    with RemoteDataset(server.address, "d", batch_size=4, epochs=1, shuffle=False) as dataset:
        before = repr(dataset)
        next(iter(dataset))

        assert (
            "RemoteDataset('d', batch_size=4, rank 0 of 1, epoch=0, position=0; columns are known "
            "after the first batch)"
        ) == before
        assert (
            f"RemoteDataset('d', batch_size=4, rank 0 of 1, epoch=0, position=4; {COLUMNS})"
        ) == repr(dataset)


def test_a_dataset_shows_its_transform_too(server: Server) -> None:
    """What that returns, nobody knows beforehand."""
    with RemoteDataset(server.address, "d", batch_size=4, transform=len) as dataset:
        next(iter(dataset))

        assert repr(dataset).endswith(f"{COLUMNS}; transform={len!r})")
