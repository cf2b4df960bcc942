"""Nested columns come apart into flat ones, and nothing of them is lost."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UnsupportedColumnError
from headrace.server.layout.flatten_columns import lower_field

Flat = dict[str, list[Any]]


def _lower(array: pa.Array[Any], *, nullable: bool = True) -> Flat:
    columns = lower_field(pa.field("x", array.type, nullable), item_nulls=True)
    flat = {}
    for column in columns:
        found = column.extract(array)
        found.validate(full=True)
        assert column.type == found.type
        assert column.name not in flat
        flat[column.name] = found.to_pylist()
    return flat


def _sliced(values: list[Any], kind: pa.DataType) -> list[pa.Array[Any]]:
    """The whole array, and the same values as a part of a longer one."""
    whole = pa.array(values, kind)
    longer = pa.array([*values[:1], *values, *values[-1:]], kind)
    return [whole, longer.slice(len(values[:1]), len(values))]


NUMBERS = st.none() | st.integers(-100, 100)
TEXTS = st.none() | st.text(max_size=4)


def _regrouped(flat: list[Any], lengths: list[int]) -> list[list[Any]]:
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    return [flat[a:b] for a, b in itertools.pairwise(ends)]


def _with_nulls(items: list[Any], valid: list[bool]) -> list[Any]:
    return [item if there else None for item, there in zip(items, valid, strict=True)]


@given(st.lists(st.none() | st.lists(NUMBERS, max_size=3), max_size=6))
def test_lists_of_numbers_keep_their_nulls(values: list[Any]) -> None:
    """Values, and which of them are there."""
    for array in _sliced(values, pa.list_(pa.int32())):
        flat = _lower(array)
        found = [
            None if items is None else _with_nulls(items, valid)
            for items, valid in zip(flat["x"], flat["x.items_valid"], strict=True)
        ]

        assert values == found


@given(st.lists(st.none() | st.lists(TEXTS, max_size=3), max_size=6))
def test_lists_of_strings_keep_their_borders(values: list[Any]) -> None:
    """All bytes of a sample, and how long each string is."""
    for array in _sliced(values, pa.list_(pa.string())):
        flat = _lower(array)
        found = [
            None
            if content is None
            else _with_nulls([bytes(part).decode() for part in _regrouped(content, lengths)], valid)
            for content, lengths, valid in zip(
                flat["x"], flat["x.lengths"], flat["x.items_valid"], strict=True
            )
        ]

        assert values == found


@given(st.lists(st.lists(st.none() | st.lists(NUMBERS, max_size=3), max_size=3), max_size=5))
def test_lists_of_lists_keep_both_levels(values: list[Any]) -> None:
    """Lengths and validity of each level stand beside the values."""
    for array in _sliced(values, pa.list_(pa.list_(pa.int8()))):
        flat = _lower(array)
        found = [
            _with_nulls(_regrouped(_with_nulls(items, inner), lengths), outer)
            for items, lengths, outer, inner in zip(
                *(flat[name] for name in ("x", "x.lengths", "x.items_valid", "x.items_valid2")),
                strict=True,
            )
        ]

        assert values == found


STRUCTS = st.none() | st.fixed_dictionaries({"a": NUMBERS, "b": TEXTS})


@given(st.lists(STRUCTS, max_size=6))
def test_structs_become_a_column_a_field(values: list[Any]) -> None:
    """A field is null where its struct is."""
    kind = pa.struct([("a", pa.int64()), ("b", pa.string())])
    for array in _sliced(values, kind):
        expected = {
            f"x.{name}": [None if value is None else value[name] for value in values]
            for name in ("a", "b")
        }

        assert expected == _lower(array)


@given(st.lists(st.none() | st.dictionaries(st.text(max_size=3), NUMBERS, max_size=3), max_size=5))
def test_maps_become_keys_and_values(values: list[dict[str, int] | None]) -> None:
    """A map is a list of pairs."""
    pairs = [None if value is None else list(value.items()) for value in values]
    for array in _sliced(pairs, pa.map_(pa.string(), pa.int64())):
        flat = _lower(array)
        found: list[dict[str, int] | None] = []
        for index, content in enumerate(flat["x.key"]):
            if content is None:
                found.append(None)
                continue
            keys = _regrouped(content, flat["x.key.lengths"][index])
            items = _with_nulls(flat["x.value"][index], flat["x.value.items_valid"][index])
            found.append(dict(zip([bytes(key).decode() for key in keys], items, strict=True)))

        assert values == found


@given(st.lists(st.none() | st.lists(NUMBERS, min_size=6, max_size=6), min_size=1, max_size=5))
def test_tensors_with_null_items_keep_their_shape(values: list[Any]) -> None:
    """Zeros where nulls were, and a tensor of the same shape that says where."""
    kind = pa.list_(pa.list_(pa.int16(), 3), 2)
    shaped = [None if value is None else [value[:3], value[3:]] for value in values]
    for array in _sliced(shaped, kind):
        flat = _lower(array)
        found = [
            None
            if rows is None
            else [_with_nulls(row, there) for row, there in zip(rows, valid, strict=True)]
            for rows, valid in zip(flat["x"], flat["x.items_valid"], strict=True)
        ]

        assert shaped == found


UTC = dt.UTC


@pytest.mark.parametrize(
    ("value", "kind", "expected", "stored"),
    [
        (dt.date(2020, 1, 2), pa.date32(), 18263, pa.int32()),
        (dt.time(0, 0, 1), pa.time64("us"), 1_000_000, pa.int64()),
        (dt.time(0, 0, 1), pa.time32("ms"), 1_000, pa.int32()),
        (dt.datetime(1970, 1, 1, 1, tzinfo=UTC), pa.timestamp("ms", "UTC"), 3_600_000, pa.int64()),
        (dt.timedelta(seconds=2), pa.duration("ns"), 2_000_000_000, pa.int64()),
        (Decimal("-1.50"), pa.decimal64(10, 2), -150, pa.int64()),
        (Decimal("-1.50"), pa.decimal32(5, 2), -150, pa.int32()),
        (
            Decimal("1.50"),
            pa.decimal128(20, 2),
            list((150).to_bytes(16, "little")),
            pa.list_(pa.field("item", pa.uint8(), nullable=False), 16),
        ),
        (
            Decimal("-1.50"),
            pa.decimal256(50, 2),
            list((-150).to_bytes(32, "little", signed=True)),
            pa.list_(pa.field("item", pa.uint8(), nullable=False), 32),
        ),
    ],
)
def test_times_and_decimals_become_what_they_are_stored_as(
    value: object, kind: pa.DataType, expected: object, stored: pa.DataType
) -> None:
    """Integers, or bytes, with the meaning said beside them."""
    for array in _sliced([None, value], kind):
        [column] = lower_field(pa.field("x", kind))

        assert (str(kind), stored) == (column.logical_type, column.type)
        assert [None, expected] == column.extract(array).to_pylist()


@pytest.mark.parametrize(
    "kind",
    [
        pa.int32(),
        pa.float16(),
        pa.bool_(),
        pa.string(),
        pa.large_binary(),
        pa.list_(pa.field("item", pa.float32(), nullable=False)),
        pa.list_(pa.field("item", pa.float32(), nullable=False), 4),
        pa.fixed_shape_tensor(pa.float32(), [2, 2]),
    ],
)
def test_what_travels_already_is_left_alone(kind: pa.DataType) -> None:
    """No copy and no other name."""
    [column] = lower_field(pa.field("x", kind))
    nothing: Callable[[object], object] = column.extract
    marker = object()

    assert ("x", kind, "") == (column.name, column.type, column.logical_type)
    assert marker is nothing(marker)


def test_lists_of_times_say_what_their_items_mean() -> None:
    """The meaning of the items is the meaning of the list."""
    columns = lower_field(pa.field("x", pa.list_(pa.date32())))

    assert ["list<date32[day]>"] == [column.logical_type for column in columns]


def test_deep_structures_get_names_that_do_not_collide() -> None:
    """Each level's lengths have a name of their own."""
    deep = pa.list_(pa.list_(pa.list_(pa.struct([("s", pa.string())]))))
    names = [column.name for column in lower_field(pa.field("x", deep))]

    assert len(names) == len(set(names))
    assert {"x.s", "x.s.lengths", "x.s.lengths2", "x.s.lengths3"} <= set(names)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.list_(pa.string()), ["a", None]),
        (pa.list_(pa.list_(pa.int8())), [[1], None]),
        (pa.list_(pa.struct([("a", pa.int8())])), [None]),
        (pa.map_(pa.string(), pa.int8()), [("k", None)]),
    ],
)
def test_null_items_are_refused_unless_they_are_expected(kind: pa.DataType, value: object) -> None:
    """No null becomes an empty string or a zero in silence; the message says what to do."""
    array = pa.array([value], kind)

    columns = lower_field(pa.field("x", kind))
    last = columns[-1].extract

    with pytest.raises(UnsupportedColumnError, match=r"null item; serve .* --item-nulls"):
        last(array)
    assert not any("items_valid" in column.name for column in columns)
