"""Values are shown whatever times they hold."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.show.python_values import python_value

_FAR = 500_000_000_000_000_000  # microseconds: the year 17814
_TEXT = "17814-05-16 00:53:20.000000"
_US = pa.timestamp("us")


def _scalar(value: object, plain: pa.DataType, kind: pa.DataType) -> Any:
    return pa.array([value], plain).cast(kind)[0]


@pytest.mark.parametrize(
    ("scalar", "shown"),
    [
        (_scalar(0, pa.int64(), _US), dt.datetime(1970, 1, 1)),  # noqa: DTZ001 - as it is stored
        (_scalar(_FAR, pa.int64(), _US), _TEXT),
        (_scalar(4_000_000, pa.int32(), pa.date32()), "12921-08-18"),
        (_scalar(1 << 62, pa.int64(), pa.duration("s")), str(1 << 62)),
        (
            _scalar([_FAR, 0], pa.list_(pa.int64()), pa.list_(_US)),
            [_TEXT, "1970-01-01 00:00:00.000000"],
        ),
        (
            _scalar({"t": _FAR}, pa.struct([("t", pa.int64())]), pa.struct([("t", _US)])),
            {"t": _TEXT},
        ),
        (
            _scalar([("k", _FAR)], pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), _US)),
            [("k", _TEXT)],
        ),
    ],
    ids=["now", "timestamp", "date", "duration", "list", "struct", "map"],
)
def test_times_that_python_cannot_represent_are_texts(scalar: Any, shown: object) -> None:
    """At any depth, as Arrow prints them; others stay what they are."""
    assert shown == python_value(scalar)
