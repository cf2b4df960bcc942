"""Every type that Spark and Arrow users have reaches the training loop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal

import pyarrow as pa
import pytest
import torch

from headrace.client import Batch, RemoteDataset, Transport
from headrace.errors import UnsupportedColumnError
from support.datasets import write_dataset
from support.running import server_of
from support.transports import TRANSPORTS, listen_for, plugs_for

TABLE = pa.table(
    {
        "day": pa.array([dt.date(1970, 1, 2), None, dt.date(1970, 1, 4)]),
        "at": pa.array([0, 1_000_000, 2_000_000], pa.timestamp("us")),
        "price": pa.array([Decimal("1.25"), Decimal("-2.50"), None], pa.decimal128(9, 2)),
        "point": pa.array([{"x": 1, "y": 2.5}, None, {"x": 3, "y": None}]),
        "words": pa.array([["ab", "c"], [], ["def"]]),
        "counts": pa.array(
            [[("k", 1)], [], [("l", 2), ("m", 3)]], pa.map_(pa.string(), pa.int32())
        ),
        "grid": pa.array([[[1, 2], [3]], [], [[4]]]),
        "half": pa.array([1.5, 2.5, -3.5], pa.float16()),
    }
)


@pytest.fixture(scope="module", params=TRANSPORTS)
def batch(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Batch]:
    """All three samples in storage order, in one batch."""
    url = str(tmp_path_factory.mktemp("types") / "d")
    write_dataset(url, TABLE, shard_samples=[2, 1])
    with (
        listen_for(request.param) as listen,
        server_of({"d": url}, listen=listen, plugs=plugs_for(request.param)) as server,
        closing(
            RemoteDataset(
                server.address, "d", batch_size=3, shuffle=False, transport=Transport(request.param)
            )
        ) as dataset,
    ):
        yield next(iter(dataset))


def _tensor(batch: Batch, name: str) -> list[object]:
    values = batch[name]
    assert isinstance(values, torch.Tensor)
    return list(values.tolist())


def _rows(batch: Batch, name: str) -> list[object]:
    return [None if row is None else row.tolist() for row in batch.ragged[name]]


def test_dates_and_times_are_integers_of_their_unit(batch: Batch) -> None:
    """Days and microseconds since 1970, with a validity where there are nulls."""
    assert ([1, 0, 3], [True, False, True]) == (_tensor(batch, "day"), _tensor(batch, "day.valid"))
    assert [0, 1_000_000, 2_000_000] == _tensor(batch, "at")


def test_decimals_are_their_sixteen_bytes(batch: Batch) -> None:
    """Little-endian two's complement of the unscaled value."""
    values = batch["price"]
    assert isinstance(values, torch.Tensor)
    found = [int.from_bytes(bytes(row), "little", signed=True) for row in values.tolist()]

    assert [125, -250, 0] == found
    assert [True, True, False] == _tensor(batch, "price.valid")


def test_a_struct_is_a_column_a_field(batch: Batch) -> None:
    """A field is null where it is, or where its struct is."""
    assert ([1, 0, 3], [True, False, True]) == (
        _tensor(batch, "point.x"),
        _tensor(batch, "point.x.valid"),
    )
    assert [True, False, False] == _tensor(batch, "point.y.valid")


def test_lists_of_strings_are_bytes_and_lengths(batch: Batch) -> None:
    """The bytes of a sample's strings one after another, and how long each is."""
    assert [list(b"abc"), [], list(b"def")] == _rows(batch, "words")
    assert [[2, 1], [], [3]] == _rows(batch, "words.lengths")


def test_maps_are_keys_and_values(batch: Batch) -> None:
    """As a list of pairs."""
    assert [list(b"k"), [], list(b"lm")] == _rows(batch, "counts.key")
    assert [[1], [], [2, 3]] == _rows(batch, "counts.value")


def test_lists_of_lists_are_values_and_lengths(batch: Batch) -> None:
    """All values of a sample, and how many each inner list has."""
    assert [[1, 2, 3], [], [4]] == _rows(batch, "grid")
    assert [[2, 1], [], [1]] == _rows(batch, "grid.lengths")


def test_half_precision_stays_half(batch: Batch) -> None:
    """No dtype changes on the way."""
    values = batch["half"]
    assert isinstance(values, torch.Tensor)

    assert (torch.float16, [1.5, 2.5, -3.5]) == (values.dtype, values.tolist())


@pytest.mark.parametrize("item_nulls", [False, True])
def test_null_items_are_refused_or_announced(item_nulls: bool, tmp_path: object) -> None:  # noqa: FBT001 - a parameter of the test
    """A null inside a list is an error, or a zero with a validity beside it: never a mere zero."""
    url = f"{tmp_path}/d"
    write_dataset(url, pa.table({"x": pa.array([[1, None], [3]])}), shard_samples=[2])
    server = server_of({"d": url}, item_nulls=item_nulls)
    dataset = RemoteDataset(server.address, "d", batch_size=2, shuffle=False)
    try:
        if not item_nulls:
            with pytest.raises(UnsupportedColumnError, match="--item-nulls"):
                next(iter(dataset))
            return
        found = next(iter(dataset))
    finally:
        dataset.close()
        server.stop()

    assert [[1, 0], [3]] == _rows(found, "x")
    assert [[True, False], [True]] == _rows(found, "x.items_valid")
