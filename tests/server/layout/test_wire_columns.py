"""Tests of what columns become on the wire."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.errors import BadArgumentError, ColumnNotFoundError, UnsupportedColumnError
from headrace.server.layout.wire_columns import choose_columns, split_schema, wire_column
from headrace.v1 import shard_service_pb2 as pb

_FIELDS: list[tuple[str, pa.DataType]] = [
    ("a", pa.int64()),
    ("when", pa.null()),
    ("b", pa.string()),
]
_SCHEMA = pa.schema(_FIELDS)


@pytest.mark.parametrize(
    ("arrow_type", "kind", "element", "shape"),
    [
        (pa.bool_(), pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_BOOL, []),
        (pa.float16(), pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_FLOAT16, []),
        (pa.list_(pa.uint8(), 3), pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_UINT8, [3]),
        (
            pa.list_(pa.list_(pa.int8(), 4), 2),
            pb.COLUMN_KIND_TENSOR,
            pb.ELEMENT_TYPE_INT8,
            [2, 4],
        ),
        (
            pa.fixed_shape_tensor(pa.float32(), [2, 3]),
            pb.COLUMN_KIND_TENSOR,
            pb.ELEMENT_TYPE_FLOAT32,
            [2, 3],
        ),
        (pa.large_string(), pb.COLUMN_KIND_STRING, pb.ELEMENT_TYPE_UINT8, []),
        (pa.binary(16), pb.COLUMN_KIND_BYTES, pb.ELEMENT_TYPE_UINT8, []),
        (pa.list_(pa.int32()), pb.COLUMN_KIND_RAGGED, pb.ELEMENT_TYPE_INT32, []),
    ],
)
def test_types_have_a_form(
    arrow_type: pa.DataType, kind: pb.ColumnKind, element: pb.ElementType, shape: list[int]
) -> None:
    """Each type that can be sent has one kind, one element type and one shape."""
    column = wire_column(pa.field("x", arrow_type, nullable=False)).to_proto()

    expected = pb.Column(name="x", kind=kind, element_type=element, item_shape=shape)
    assert expected == column


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.date32(),
        pa.timestamp("us"),
        pa.decimal128(9, 2),
        pa.struct([("x", pa.int8())]),
        pa.map_(pa.string(), pa.int8()),
        pa.list_(pa.string()),
        pa.list_(pa.list_(pa.int8())),
        pa.list_(pa.string(), 2),
        pa.list_(pa.int8(), 0),
        pa.fixed_shape_tensor(pa.int8(), [2, 3], permutation=[1, 0]),
        pa.null(),
    ],
)
def test_other_types_are_refused_by_name(arrow_type: pa.DataType) -> None:
    """A type without a form is refused; the message has the column and the type."""
    with pytest.raises(UnsupportedColumnError, match="column 'x' has the type"):
        wire_column(pa.field("x", arrow_type))


def test_names_of_the_server_are_refused() -> None:
    """A column called like one that the server makes cannot be sent."""
    with pytest.raises(UnsupportedColumnError, match="rename it"):
        wire_column(pa.field("headrace.sample_id", pa.int64()))


def test_a_dataset_with_a_refused_column_serves_the_others() -> None:
    """Columns are chosen by name; only all of them, or the refused one, fails."""
    columns, refused = split_schema(_SCHEMA)

    assert ["a", "b"] == [column.name for column in columns]
    assert ["b"] == [column.name for column in choose_columns(["b"], columns, refused)]
    for names in ([], ["a", "when"]):
        with pytest.raises(UnsupportedColumnError, match="column 'when' has the type null"):
            choose_columns(names, columns, refused)


def test_a_column_must_exist_and_come_once() -> None:
    """An unknown name lists the known ones; a name given twice is refused."""
    columns, _ = split_schema(_SCHEMA)

    with pytest.raises(ColumnNotFoundError, match="no column 'c'; the dataset has a, b"):
        choose_columns(["c"], columns, {})
    with pytest.raises(BadArgumentError, match="'a' is requested more than once"):
        choose_columns(["a", "b", "a"], columns, {})


NESTED = pa.schema(
    [
        ("a", pa.struct([("x", pa.int8()), ("t", pa.timestamp("us", "UTC"))])),
        ("s", pa.list_(pa.string())),
        ("s.lengths", pa.int32()),
    ]
)


def test_a_nested_column_is_chosen_by_its_name_or_by_a_part() -> None:
    """The name of a struct means all its fields; a field has a name of its own."""
    columns, refused = split_schema(NESTED)

    assert ["a.x", "a.t"] == [c.name for c in choose_columns(["a"], columns, refused)]
    assert ["a.t"] == [c.name for c in choose_columns(["a.t"], columns, refused)]
    assert ["timestamp[us, tz=UTC]", "a"] == [
        choose_columns(["a.t"], columns, refused)[0].to_proto().logical_type,
        choose_columns(["a.t"], columns, refused)[0].to_proto().stored_column,
    ]


def test_parts_that_would_hide_another_column_are_refused() -> None:
    """Two columns of one name cannot travel; the message says which to rename."""
    _, refused = split_schema(NESTED)

    assert ["s"] == list(refused)
    assert "rename one of them" in refused["s"]
