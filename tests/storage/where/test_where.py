"""Tests of the language of filters: what it keeps is what SQL keeps, and what it refuses."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headrace.errors import BadArgumentError
from headrace.storage import kept_bits, make_filter, open_dataset, with_classes
from support.datasets import write_dataset

_INTS = [-(2**63), -3, -1, 0, 1, 2, 3, 2**53, 2**53 + 1, 2**63 - 1]
_FLOATS = [-1e300, -2.5, -0.0, 0.0, 0.1, 1.0, 2.5, 3.0, 9007199254740992.0, 1e300]
_TEXTS = ["", "a", "it's", "en", "EN", "é", "z" * 40]
_NUMBERS = [*map(str, _INTS), "-0.5", "1.5", "2.0", "9007199254740992.0", "1e3", "-1e30", "1e30"]

_ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.sampled_from(_INTS)),
        st.one_of(st.none(), st.sampled_from(_INTS)),
        st.one_of(st.none(), st.sampled_from(_FLOATS)),
        st.one_of(st.none(), st.sampled_from(_TEXTS)),
        st.one_of(st.none(), st.booleans()),
    ),
    min_size=1,
    max_size=30,
)
_COMPARISONS = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_NUMBER = st.sampled_from(_NUMBERS)
# With floats a number is rounded to their type, which SQLite does not do.
_DOUBLE = st.sampled_from([text for text in _NUMBERS if float(text) == Decimal(text)])
_TEXT = st.sampled_from(_TEXTS).map(_quoted)
_PREDICATES = st.one_of(
    st.tuples(st.sampled_from(["i", "j"]), _COMPARISONS, _NUMBER).map(" ".join),
    st.tuples(st.just("f"), _COMPARISONS, _DOUBLE).map(" ".join),
    st.tuples(_NUMBER, _COMPARISONS, st.just("i")).map(" ".join),
    st.tuples(st.just("i"), _COMPARISONS, st.just("j")).map(" ".join),
    st.tuples(st.just("s"), _COMPARISONS, _TEXT).map(" ".join),
    st.tuples(st.just("b"), st.sampled_from(["=", "!="]), st.sampled_from(["true", "false"])).map(
        " ".join
    ),
    st.just("b"),
    st.tuples(
        st.just("i"),
        st.sampled_from(["in", "not in", "IN"]),
        st.lists(_NUMBER, min_size=1, max_size=4).map(lambda each: f"({', '.join(each)})"),
    ).map(" ".join),
    st.tuples(
        st.just("f"),
        st.sampled_from(["in", "not in"]),
        st.lists(_DOUBLE, min_size=1, max_size=4).map(lambda each: f"({', '.join(each)})"),
    ).map(" ".join),
    st.tuples(
        st.just("s"),
        st.sampled_from(["in", "not in"]),
        st.lists(_TEXT, min_size=1, max_size=4).map(lambda each: f"({','.join(each)})"),
    ).map(" ".join),
    st.tuples(
        st.sampled_from(["i", "f"]), st.sampled_from(["between", "not between"]), _DOUBLE, _DOUBLE
    ).map(lambda each: f"{each[0]} {each[1]} {each[2]} and {each[3]}"),
    st.tuples(st.sampled_from("ijfsb"), st.sampled_from(["is null", "is not null"])).map(" ".join),
)
_EXPRESSIONS = st.recursive(
    _PREDICATES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" and ", " or ", " AND "]), inner).map("".join),
        inner.map(lambda each: f"not ({each})"),
        inner.map(lambda each: f"({each})"),
    ),
    max_leaves=6,
)


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    i, j, f, s, b = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "i": pa.array(i, pa.int64()),
            "j": pa.array(j, pa.int64()),
            "f": pa.array(f, pa.float64()),
            "s": pa.array(s, pa.string()),
            "b": pa.array(b, pa.bool_()),
        }
    )


def _sql(rows: list[tuple[Any, ...]], where: str) -> list[bool]:
    with closing(sqlite3.connect(":memory:")) as found:
        found.execute("create table t (i integer, j integer, f real, s text, b integer)")
        found.executemany("insert into t values (?, ?, ?, ?, ?)", rows)
        # SQLite tells what is kept from what is false or null.
        return [bool(kept) for (kept,) in found.execute(f"select ({where}) is true from t")]  # noqa: S608 - drawn above


@settings(max_examples=300)
@given(_ROWS, _EXPRESSIONS)
def test_a_filter_keeps_what_sql_keeps(rows: list[tuple[Any, ...]], where: str) -> None:
    """On random tables with nulls, whatever the spelling; written in one way it is the same."""
    batch = _batch(rows)
    found = make_filter(where, batch.schema)
    again = make_filter(found.text, batch.schema)

    expected = _sql(rows, where)

    assert expected == found.mask(batch).tolist()
    assert expected == again.mask(batch).tolist()
    assert found.text == again.text


_OTHERS = pa.record_batch(
    {
        "u": pa.array([0, 200, None, 255], pa.uint8()),
        "n": pa.array([2**53, 2**53 + 1, None, 0], pa.int64()),
        "h": pa.array([0.1, 65504.0, float("nan"), None], pa.float16()),
        "x": pa.array([0.1, float("nan"), None, -0.0], pa.float32()),
        "d": pa.array([Decimal("1.20"), None, Decimal("-9.99"), Decimal("3.00")]),
        "day": pa.array([date(2013, 1, 1), None, date(2014, 1, 1), date(2015, 1, 1)]),
        "at": pa.array([0, 1, 2, None], pa.timestamp("us", "UTC")),
        "local": pa.array([0, 1, 2, None], pa.timestamp("s")),
        "kind": pa.array(["a", "b", None, "a"]).dictionary_encode(),
        "place": pa.array(
            [{"lat": 1.5, "in": {"k": 7}}, {"lat": None, "in": None}, None, {"lat": 3.0}]
        ),
        "raw": pa.array([b"x", None, b"", b"y"]),
        "a.b": pa.array([1, 2, 3, 4]),
        "select": pa.array([True, None, False, True]),
    }
)


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ("u < 300", [0, 1, 3]),
        ("u > -1 and u != 1000", [0, 1, 3]),
        ("u in (200, 2.5, 1000)", [1]),
        ("n = 9007199254740993.0", [1]),
        ("n < 9007199254740992.5", [0, 3]),
        ("u = 1e999999999", []),
        ("u < 1e999999999", [0, 1, 3]),
        ("h = 0.1", [0]),
        ("x = 0.1", [0]),
        ("x in (0.0, 0.1)", [0, 3]),
        ("x != 0.1", [1, 3]),
        ("not x = 0.1", [1, 3]),
        ("d >= 1.195", [0, 3]),
        ("d = 3", [3]),
        ("d in (1.2, -9.99, 1.205)", [0, 2]),
        ("d < 100000000", [0, 2, 3]),
        ("day >= '2014-01-01'", [2, 3]),
        ("day between '2013-01-01' and '2014-12-31'", [0, 2]),
        ("at = '1970-01-01 00:00:00.000001'", [1]),
        ("at <= '1970-01-01T02:00:00+02:00'", [0]),
        ("local > '1970-01-01 00:00:00'", [1, 2]),
        ("kind = 'a'", [0, 3]),
        ("kind not in ('a')", [1]),
        ("place.lat > 1", [0, 3]),
        ("place.in.k = 7", [0]),
        ("place is null", [2]),
        ("place.lat is null", [1, 2]),
        ("raw is not null", [0, 2, 3]),
        ("a.b < 3", [0, 1]),
        ('"a.b" < 3', [0, 1]),
        ("select", [0, 3]),
        ("not select", [2]),
        ("a.b >= u", [0]),
    ],
)
def test_types_are_compared_as_they_are_written(where: str, kept: list[int]) -> None:
    """Narrow integers, floats, decimals, times, dictionaries and fields of structs."""
    found = make_filter(where, _OTHERS.schema)

    assert kept == np.flatnonzero(found.mask(_OTHERS)).tolist()


def test_classes_are_compared_by_name() -> None:
    """A column of labels with names takes them in place of its numbers."""
    label = with_classes(pa.field("label", pa.int32()), ["cat", "dog", "it's"])
    labels = pa.array([0, 1, 2, None], pa.int32())
    batch = pa.RecordBatch.from_arrays([labels], schema=pa.schema([label]))

    for where, kept in (("label = 'dog'", [1]), ("label in ('cat', 'it''s')", [0, 2])):
        assert kept == np.flatnonzero(make_filter(where, batch.schema).mask(batch)).tolist()
    with pytest.raises(BadArgumentError, match="has no class 'dgo'; did you mean 'dog'"):
        make_filter("label = 'dgo'", batch.schema)


@pytest.mark.parametrize(
    ("where", "at", "words"),
    [
        ("", 1, "there is no expression"),
        ("   ", 1, "there is no expression"),
        ("u <", 4, "expected a value, or a column"),
        ("u < 3 u > 1", 7, "expected 'and', 'or' or the end; put a name with spaces in double"),
        ("(u < 3", 7, r"expected '\)' to close the one before"),
        ("u < 3)", 6, "expected 'and', 'or' or the end"),
        ("uu < 3", 1, "there is no column 'uu'; did you mean u"),
        ("kind = a", 8, "there is no column 'a'"),
        ('kind = "a"', 8, "put texts in single quotes"),
        ("kind in (a)", 10, "texts in single quotes"),
        ("kind = 'a", 8, "a text starts here but does not end"),
        ('"kind = 3', 1, "a name starts here but does not end"),
        ("kind = 3", 8, "kind is string; expected a text in single quotes"),
        ("u = 'a'", 5, "u is uint8; expected a number"),
        ("u < 'a'", 5, "u is uint8; expected a number"),
        ("u = null", 5, "expected 'is null' or 'is not null'"),
        ("u is 3", 6, "expected 'null' after 'is'"),
        ("u not 3", 7, "expected 'in' or 'between' after 'not'"),
        ("u in 3", 6, r"expected '\(' and values after 'in'"),
        ("u in ()", 7, "expected a value"),
        ("u between 1", 12, "expected 'and' and the upper value"),
        ("u", 1, "expected a comparison, or a bool column"),
        ("raw = 'x'", 1, "raw is binary; expected 'is null'"),
        ("place = 1", 1, "expected 'is null' or 'is not null'"),
        ("place.lon = 1", 1, "has no field 'lon'"),
        ("select < true", 1, "is true or false; expected = or !="),
        ("day = '2013-13-01'", 7, "expected a date such as"),
        ("day = '2013-01-01 10:00:00'", 7, "expected a date such as"),
        ("local = '1970-01-01 00:00:00.5'", 9, "not finer than its unit"),
        ("day = 3", 7, "expected a date such as"),
        ("u = kind", 3, "expected two columns that can be compared"),
        ("1 = 1", 3, "two values are compared"),
        ("u ~ 3", 3, "not part of the language"),
        ("u < 3; drop", 6, "not part of the language"),
        ("3u = 3", 1, "this is neither a number nor a name"),
        ("x > 1e" + "9" * 30, 5, "this is neither a number nor a name"),
        ("u > 1e-" + "9" * 30, 5, "this is neither a number nor a name"),
        ("kind like 'x'", 6, "expected 'and', 'or' or the end"),
        ("u < 3 and", 10, "expected a value, or a column"),
        ("(" * 60 + "u = 1" + ")" * 60, 51, "nested more than 50 levels deep"),
        ("u = 1 or\n u <", 14, "expected a value"),
    ],
)
def test_what_cannot_be_read_is_shown(where: str, at: int, words: str) -> None:
    """An error names the character and what was expected there."""
    with pytest.raises(BadArgumentError, match=words) as caught:
        make_filter(where, _OTHERS.schema)

    assert f"character {at}:" in caught.value.message
    assert caught.value.metadata["field"] == "where"


def test_long_expressions_are_bounded() -> None:
    """Letters, depth and digits that a caller sends cost no more than milliseconds."""
    began = time.monotonic()
    for where in ("u = 1 or " * 2000, "not " * 2000 + "u", "'" * 8001, "u=1 or " * 64 + "u=1"):
        with pytest.raises(BadArgumentError):
            make_filter(where, _OTHERS.schema)
    make_filter("u = 1" + " or u = 1" * 63, _OTHERS.schema)
    make_filter(f"u in ({', '.join('1' * 2000)})", _OTHERS.schema)
    make_filter("not " * 1000 + "u = 1", _OTHERS.schema)
    for digits in (4000, 8000):
        found = make_filter(f"u < {'9' * digits}", _OTHERS.schema)
        assert [0, 1, 3] == np.flatnonzero(found.mask(_OTHERS)).tolist()

    assert time.monotonic() - began < 2


def _table(count: int) -> pa.Table:
    numbers = np.arange(count)
    nested = pa.array([{"k": number % 7} for number in numbers.tolist()])
    return pa.table({"x": numbers, "s": nested, "text": [f"t{n % 5}" for n in numbers.tolist()]})


def test_all_blocks_of_a_dataset_are_looked_at(tmp_path: Path) -> None:
    """Blocks that end between bytes of bits, of our shards and of Parquet, give the same."""
    table = _table(1003)
    write_dataset(str(tmp_path / "d"), table, shard_samples=[501, 502], block_bytes=300)
    (tmp_path / "p").mkdir()
    pq.write_table(table, tmp_path / "p" / "x.parquet", row_group_size=37)
    expected = [n for n in range(1003) if n % 7 == 3 and n % 5 != 2 and n < 900]

    for name in ("d", "p"):
        told: list[int] = []
        with open_dataset(str(tmp_path / name)) as dataset:
            found = make_filter("s.k = 3 and text != 't2' and x < 900", dataset.schema)
            bits = kept_bits(dataset, found, progress=told.append)
        kept = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
        assert expected == kept.tolist()
        assert told == sorted(told)
        assert told[-1] == 1003


def test_small_blocks_are_compared_together(tmp_path: Path) -> None:
    """An expression is evaluated for about a MiB at a time, not for each block."""
    count = 300_000
    table = pa.table({"x": np.arange(count)})
    write_dataset(str(tmp_path / "d"), table, shard_samples=[count], block_bytes=60_000)
    sizes: list[int] = []

    with open_dataset(str(tmp_path / "d")) as dataset:
        found = make_filter("x >= 7", dataset.schema)

        def mask(batch: pa.RecordBatch) -> NDArray[np.bool_]:
            sizes.append(batch.num_rows)
            return found.mask(batch)

        bits = kept_bits(dataset, replace(found, mask=mask))

    kept = np.flatnonzero(np.unpackbits(bits, count=count, bitorder="little"))
    assert np.array_equal(np.arange(7, count), kept)
    assert count == sum(sizes)
    assert 2 <= len(sizes) <= 4


def test_a_filter_that_is_given_up_ends_its_reads(tmp_path: Path) -> None:
    """What the progress raises comes out, and no thread is left."""
    write_dataset(str(tmp_path / "d"), _table(1000), shard_samples=[1000], block_bytes=300)

    def stop(done: int) -> None:
        raise InterruptedError(done)

    with open_dataset(str(tmp_path / "d")) as dataset:
        found = make_filter("x < 3", dataset.schema)
        with pytest.raises(InterruptedError):
            kept_bits(dataset, found, progress=stop)
