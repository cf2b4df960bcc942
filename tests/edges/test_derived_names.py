"""No name that readers make of one column is the name of another."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client import NumpyDataset, Pad, RemoteDataset
from headrace.client.wire.payload_layout import PayloadReader
from headrace.converter.columns.derived_names import refuse_derived_names
from headrace.converter.plan.schema import plan_columns
from headrace.errors import StreamCorruptError, UnsupportedColumnError
from headrace.server.layout.wire_columns import choose_columns, refuse_taken_names, split_schema
from headrace.v1 import shard_service_pb2 as pb
from support.datasets import write_dataset
from support.running import running

X = pa.array([1.0, None, 3.0] * 4)
VALID = pa.array([7, 8, 9] * 4)


def _url(folder: Path) -> str:
    table = pa.table({"x": X, "x.valid": VALID, "other": VALID})
    write_dataset(str(folder), table, shard_samples=[12])
    return str(folder)


def _read(address: str, columns: list[str]) -> dict[str, list[Any]]:
    dataset = NumpyDataset(
        address, "rich", batch_size=12, columns=columns, shuffle=False, epochs=1, end="uneven"
    )
    [batch] = list(dataset)
    return {name: values.tolist() for name, values in batch.items()}


def test_a_users_column_is_never_taken_for_which_rows_are_there(tmp_path: Path) -> None:
    """Together they are refused, with what to do; each alone is as it was stored."""
    with running(_url(tmp_path)) as server:
        for columns in ([], ["x", "x.valid"], ["x.valid", "x"]):
            for kind in (NumpyDataset, RemoteDataset):
                dataset = kind(
                    server.server.address, "rich", batch_size=4, columns=columns, epochs=1
                )
                with pytest.raises(UnsupportedColumnError, match=r"'x\.valid'.*request columns"):
                    list(dataset)
        alone = _read(server.server.address, ["x", "other"])
        other = _read(server.server.address, ["x.valid"])

    assert [True, False, True] * 4 == alone["x.valid"]
    assert VALID.to_pylist() == alone["other"] == other["x.valid"]


def test_a_step_cannot_make_one(tmp_path: Path) -> None:
    """`Pad` of a column whose `.length` is there is refused."""
    rows = pa.array([[1], [2, 3]], pa.list_(pa.field("item", pa.int32(), nullable=False)))
    table = pa.table({"x": rows, "x.length": [1, 2]})
    write_dataset(str(tmp_path), table, shard_samples=[2])
    with running(str(tmp_path)) as server:
        dataset = RemoteDataset(
            server.server.address, "rich", batch_size=2, stages=[Pad("x", length=4)]
        )
        with pytest.raises(Exception, match=r"'x\.length', which already exists"):
            next(iter(dataset))


def test_a_client_refuses_it_of_any_server() -> None:
    """Also where the server, an older one, has not."""
    columns = [pb.Column(name="x", nullable=True), pb.Column(name="x.valid")]

    with pytest.raises(StreamCorruptError, match=r"two columns .* 'x\.valid'"):
        PayloadReader(columns)


CLASHES = [
    {"a": pa.struct([("b.c", pa.int8()), ("b", pa.struct([("c", pa.int8())]))])},
    {"a": pa.struct([("b", pa.int8()), ("b", pa.int64())])},
    {"a": pa.struct([("b", pa.list_(pa.string())), ("b.lengths", pa.list_(pa.int64()))])},
    {"a": pa.list_(pa.struct([("b", pa.string()), ("b.lengths", pa.int64())]))},
    {"a": pa.struct([("b.c", pa.int8())]), "a.b": pa.struct([("c", pa.int8())])},
]


@pytest.mark.parametrize("types", CLASHES)
def test_parts_of_one_name_are_refused_whichever_comes_first(types: dict[str, Any]) -> None:
    """Within one column, or of two; other columns are served."""
    for names in itertools.permutations([*types, "y"]):
        schema = pa.schema([(name, types.get(name, pa.int8())) for name in names])
        columns, refused = split_schema(schema)

        assert ["y"] == [column.name for column in columns]
        assert set(types) == set(refused)
        with pytest.raises(UnsupportedColumnError, match="rename"):
            choose_columns([], columns, refused)


@pytest.mark.parametrize(
    "types",
    [
        *CLASHES,
        {"x": pa.float32(), "x.valid": pa.bool_()},
        {"x": pa.string(), "x.valid": pa.bool_()},
        {"a": pa.struct([("x", pa.int8())]), "a.x": pa.int8()},
        {"a": pa.struct([("x", pa.int8())]), "a.x.valid": pa.int8()},
        {"a": pa.struct([("x", pa.int8()), ("x.valid", pa.int8())])},
        {"a": pa.list_(pa.string()), "a.lengths": pa.int8()},
        {"m": pa.map_(pa.string(), pa.int8()), "m.key": pa.int8()},
        {"headrace.sample_id": pa.int64()},
        {"headrace": pa.struct([("sample_id", pa.int64())])},
    ],
)
def test_the_converter_writes_no_such_names(types: dict[str, Any]) -> None:
    """Whether nulls are there or not: an append may bring the first."""
    for names in itertools.permutations(types):
        schema = pa.schema([(name, types[name]) for name in names])
        with pytest.raises(UnsupportedColumnError, match="rename it"):
            plan_columns(schema)


@pytest.mark.parametrize(
    "names", [("x.valid", "y"), ("x", "x.valid2"), ("x", "x.length"), ("x", "xvalid"), ("a.b", "a")]
)
def test_names_with_dots_that_mean_nothing_are_kept(names: tuple[str, ...]) -> None:
    """A dot alone is no reason to refuse."""
    plans = plan_columns(pa.schema([(name, pa.int64()) for name in names]))

    assert list(names) == [plan.field.name for plan in plans]


NAMES = st.sampled_from(
    ["a", "b", "valid", "lengths", "key", "a.b", "a.valid", "b.lengths", "a.b.a"]
)
TYPES = st.recursive(
    st.sampled_from([pa.int8(), pa.string(), pa.list_(pa.int8()), pa.list_(pa.string())]),
    lambda inner: (
        st.lists(st.tuples(NAMES, inner), min_size=1, max_size=3).map(pa.struct)
        | inner.map(pa.list_)
    ),
    max_leaves=6,
)


@given(st.dictionaries(NAMES, TYPES, min_size=1, max_size=3), st.booleans())
def test_what_the_converter_lets_pass_can_all_be_served(
    types: dict[str, pa.DataType],
    item_nulls: bool,  # noqa: FBT001 - of a property
) -> None:
    """Whatever is not refused has names of its own on the wire, with those of validity."""
    fields = [pa.field(name, kind) for name, kind in types.items()]
    columns, refused = split_schema(pa.schema(fields), item_nulls=item_nulls)
    served = [column.name for column in columns]
    try:
        refuse_derived_names(fields)
    except UnsupportedColumnError:
        assert len(served) == len(set(served))
    else:
        refuse_taken_names(columns)
        names = [*served, *(f"{column.name}.valid" for column in columns if column.nullable)]
        assert ({}, len(names)) == (refused, len(set(names)))
