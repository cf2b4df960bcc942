"""What a user's function yields is written whole, however it comes."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from headrace.converter.samples.function import FunctionPlan, run_function
from headrace.errors import BadArgumentError

_SCHEMA = pa.schema([("id", pa.int64())])


def _batch(*ids: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(ids, pa.int64())}, schema=_SCHEMA)


def _ids(*batches: pa.RecordBatch) -> list[object]:
    plan = FunctionPlan(lambda given: given, "arrow", _SCHEMA)
    return [
        sample
        for batch in run_function(plan, iter(batches), partition=0)
        for sample in batch["id"].to_pylist()
    ]


def test_a_function_may_filter_everything_out() -> None:
    """Batches without rows, as a filter yields them, are no failure."""
    assert [] == _ids(_batch(), _batch())
    assert [1, 2] == _ids(_batch(), _batch(1), _batch(), _batch(2), _batch())


_INSTANT = dt.datetime(2020, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - as users' functions yield it

_ALTERED = [
    (1e300, pa.float32(), "it would become infinite"),
    (np.float64(1e10), pa.float16(), "it would become infinite"),
    ([0.5, 1e300], pa.list_(pa.float32()), "it would become infinite"),
    (np.array([1e300]), pa.list_(pa.float32()), "it would become infinite"),
    ({"k": 1e300}, pa.map_(pa.string(), pa.float32()), "it would become infinite"),
    (1.5, pa.int32(), "its fraction would be lost"),
    ([1, 1.5], pa.list_(pa.int64()), "its fraction would be lost"),
    (Decimal("1.5"), pa.int32(), "its fraction would be lost"),
    (_INSTANT, pa.timestamp("s"), "what is finer than its unit, s, would be lost"),
    (_INSTANT, pa.timestamp("ms"), "what is finer than its unit, ms, would be lost"),
    (_INSTANT.time(), pa.time32("s"), "what is finer than its unit, s, would be lost"),
    (dt.timedelta(microseconds=5), pa.duration("ms"), "what is finer than its unit, ms"),
    (_INSTANT, pa.date32(), "its time of day would be lost"),
    ({"a": 1, "b": 2}, pa.struct([("a", pa.int64())]), "its field 'b' would be lost"),
    (torch.tensor(1.5), pa.int64(), "its fraction would be lost"),
    ([np.array(1.5)], pa.list_(pa.int8()), "its fraction would be lost"),
    (1.5, pa.timestamp("s"), "its fraction would be lost"),
    (pd.Timedelta("1ns"), pa.duration("us"), "what is finer than its unit, us"),
    (np.array([_INSTANT], "M8[ns]"), pa.list_(pa.timestamp("us")), "its unit is ns"),
    (np.array([5], "m8[ms]"), pa.list_(pa.duration("s"), 1), "its unit is ms"),
    (10**400, pa.float64(), "too large"),
    ("five", pa.int64(), "Could not convert 'five'"),
]
_KEPT = [
    (math.inf, pa.float32()),
    (0.1, pa.float32()),
    (None, pa.date32()),
    (2.0, pa.int64()),
    (torch.tensor(3), pa.int64()),
    (np.array([_INSTANT], "M8[us]"), pa.list_(pa.timestamp("us"))),
    ([1, None, 2], pa.list_(pa.int64())),
    (_INSTANT, pa.timestamp("us", "UTC")),
    (_INSTANT.replace(microsecond=0), pa.timestamp("s")),
    (_INSTANT.replace(microsecond=678000), pa.timestamp("ms")),
    (dt.datetime(2020, 1, 2), pa.date32()),  # noqa: DTZ001
    (dt.date(2020, 1, 2), pa.date32()),
    ({"a": 1}, pa.struct([("a", pa.int64()), ("b", pa.date32())])),
]


def _of_rows(values: list[object], kind: pa.DataType) -> list[object]:
    schema = pa.schema([("v", kind)])
    plan = FunctionPlan(lambda _: ({"v": value} for value in values), "rows", schema)
    return [row for batch in run_function(plan, iter(()), partition=0) for row in batch.to_pylist()]


@pytest.mark.parametrize(("value", "kind", "loss"), _ALTERED)
def test_a_row_is_written_as_it_is_or_refused(value: object, kind: pa.DataType, loss: str) -> None:
    """Arrow alters these values silently; the error names the row, the column and the type."""
    with pytest.raises(BadArgumentError) as caught:
        _of_rows([None] * 1234 + [value], kind)

    shown = value if isinstance(value, float) else repr(value)
    assert f"for column 'v' in its row 1234, which its type {kind} " in caught.value.message
    assert repr(shown)[:5] in caught.value.message or str(shown)[:5] in caught.value.message
    assert loss in caught.value.message
    assert "1234" == caught.value.metadata["row"]


@pytest.mark.parametrize(("value", "kind"), _KEPT)
def test_what_a_type_represents_is_taken(value: object, kind: pa.DataType) -> None:
    """Floats may lose digits, whole numbers may be floats, and midnight is a date."""
    assert 2 == len(_of_rows([value, None], kind))


@pytest.mark.parametrize(
    ("values", "kind", "loss"),
    [
        ([1.0, 1e300], pa.float32(), "it would become infinite"),
        ([_INSTANT.replace(hour=0), _INSTANT], pa.date32(), "its time of day would be lost"),
        ([None, 1.5], pa.int32(), "would be lost|truncated"),
        ([[1], [400]], pa.list_(pa.int8()), "in its row 1,|sample 1 "),
        ([0, 2], pa.bool_(), "it is neither 0 nor 1|could not convert|tried to convert"),
        ([[1.0], [1e300]], pa.list_(pa.float32(), 1), "it would become infinite"),
        ([[1.0], [1e300]], pa.large_list(pa.float32()), "it would become infinite"),
        ([{"a": [1e300]}], pa.struct([("a", pa.list_(pa.float32()))]), "it would become infinite"),
        ([{"a": _INSTANT}], pa.struct([("a", pa.date32())]), "its time of day would be lost"),
        ([{"a": 1, "b": 2}], pa.struct([("a", pa.int64())]), "its field 'b' would be lost"),
    ],
)
@pytest.mark.parametrize("over", ["arrow", "pandas"])
def test_batches_are_written_as_they_are_or_refused(
    over: Literal["arrow", "pandas"], values: list[object], kind: pa.DataType, loss: str
) -> None:
    """The same for what a function yields as batches or as frames."""
    made = pd.DataFrame({"v": values}) if over == "pandas" else pa.record_batch({"v": values})
    plan = FunctionPlan(lambda _: iter([made]), over, pa.schema([("v", kind)]))

    with pytest.raises(BadArgumentError, match=f"(?s)'v'.*({loss})|({loss}).*column v"):
        list(run_function(plan, iter(()), partition=0))


def test_frames_with_missing_values_are_taken() -> None:
    """Nan, NaT and None are nulls in pandas, and lose nothing."""
    made = pd.DataFrame({"n": [1.0, math.nan], "t": [_INSTANT.replace(microsecond=0), pd.NaT]})
    schema = pa.schema([("n", pa.int32()), ("t", pa.timestamp("s"))])
    plan = FunctionPlan(lambda _: iter([made]), "pandas", schema)

    (batch,) = run_function(plan, iter(()), partition=0)

    assert [1, None] == batch["n"].to_pylist()
    assert 1 == batch["t"].null_count
