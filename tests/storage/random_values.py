"""Random types of Arrow and values of them, for tables in any format."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from random import Random
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

Value = Callable[[Random], Any]

_EPOCH = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - a timestamp without zone
_UTC = ZoneInfo("UTC")  # as Arrow returns it


def maker(kind: pa.DataType) -> Value:
    """Return what makes random values of a type; values inside of others may be null."""
    if pa.types.is_map(kind):
        inner = maker(kind.item_type)
        return lambda r: [(f"k{n}", nullable(r, inner)) for n in range(r.randint(0, 3))]
    if pa.types.is_struct(kind):
        makers = {one.name: maker(one.type) for one in kind}
        return lambda r: {name: nullable(r, make) for name, make in makers.items()}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = maker(kind.value_type)
        return lambda r: [nullable(r, inner) for _ in range(r.randint(0, 3))]
    return _plain(kind)


def nullable(random: Random, value: Value) -> Any:
    """Return a value, or in one case of five a null."""
    return None if random.random() < 0.2 else value(random)


def shown(row: Mapping[str, Any]) -> str:
    """Return a text of a row that is equal only for equal rows."""
    return repr(sorted(row.items()))


def _plain(kind: pa.DataType) -> Value:
    if pa.types.is_integer(kind):
        signed = pa.types.is_signed_integer(kind)
        most = 2 ** (kind.bit_width - signed) - 1
        return lambda r: r.randint(-most - 1 if signed else 0, most)
    if pa.types.is_decimal(kind):
        digits, scale = kind.precision, kind.scale
        return lambda r: _number(r.randint(1 - 10**digits, 10**digits - 1), scale)
    if pa.types.is_timestamp(kind):
        zone, step = _UTC if kind.tz else None, 1000 if kind.unit == "ms" else 1
        return lambda r: (
            _EPOCH + dt.timedelta(microseconds=r.randint(0, 10**15) // step * step)
        ).replace(tzinfo=zone)
    simple: dict[str, Value] = {
        "float": lambda r: r.randint(-1000, 1000) / 8,
        "double": lambda r: r.random(),
        "bool": lambda r: r.random() < 0.5,
        "string": lambda r: "".join(r.choices("aeß中 ", k=r.randint(0, 8))),
        "binary": lambda r: r.randbytes(r.randint(0, 5)),
        "date32[day]": lambda r: dt.date(2000, 1, 1) + dt.timedelta(r.randint(0, 20_000)),
    }
    return simple[str(kind).removeprefix("large_")]


def _number(digits: int, scale: int) -> Decimal:
    """Return a number exactly, whatever the precision of the context."""
    sign = int(digits < 0)
    return Decimal((sign, tuple(map(int, str(abs(digits)))), -scale))
