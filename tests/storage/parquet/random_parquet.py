"""Random datasets of Parquet files, and the rows that a reader must find in them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from storage.random_values import maker, nullable, shown

_FORMS: tuple[tuple[pa.DataType, ...], ...] = (
    (pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    (pa.float32(), pa.float64()),
    (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())),
    (pa.binary(), pa.large_binary()),
    (pa.bool_(),),
    (pa.date32(),),
    (pa.timestamp("ms"), pa.timestamp("us")),
    (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")),
    (pa.decimal128(9, 2), pa.decimal128(18, 2), pa.decimal128(30, 2)),
)
"""Types that one column may have in different files."""
_KEYS: tuple[Callable[[Random], Any], ...] = (
    lambda r: r.randint(-(2**40), 2**40),
    lambda r: dt.date(2000, 1, 1) + dt.timedelta(r.randint(0, 9_000)),
    lambda r: "k" + "".join(r.choices("=/%+ aß", k=3)),
)

Forms = tuple[pa.DataType, ...]


def random_parquet(folder: Path, random: Random) -> Counter[str]:
    """Write a dataset of some files, columns of which some may lack, and return its rows."""
    columns = {f"c{number}": _random_forms(random) for number in range(random.randint(1, 5))}
    keys = [random.choice(_KEYS) for _ in range(random.choice([0, 0, 1, 2]))]
    rows: list[dict[str, Any]] = []
    known = [_divided(keys, random) for _ in range(random.randint(1, 3))]
    if any(all(one[key] is None for one in known) for key in known[0]):
        known = known[:1] if not keys else [dict.fromkeys(known[0], "k")]
    for number in range(random.randint(1, 5)):
        divided = known[number % len(known)]
        there = list(columns) if not number else random.sample(list(columns), len(columns))
        if number and random.random() < 0.3:
            there = there[1:] or there
        written = _write(folder / _path(divided) / f"{number}.parquet", columns, there, random)
        rows += [{**dict.fromkeys(columns), **row, **divided} for row in written]
    return Counter(map(shown, rows))


def _write(
    path: Path, columns: dict[str, Forms], there: list[str], random: Random
) -> list[dict[str, Any]]:
    count = random.randint(1, 9)
    arrays = {}
    for name in there:
        kind = random.choice(columns[name])
        plain = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
        make = maker(plain)
        values = pa.array([nullable(random, make) for _ in range(count)], plain)
        arrays[name] = values.cast(kind)
    table = pa.table(arrays)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(
        table,
        path,
        row_group_size=random.choice([1, 3, 100]),
        compression=random.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=random.random() < 0.5,
        data_page_version=random.choice(["1.0", "2.0"]),
        write_statistics=random.random() < 0.7,
        write_page_checksum=random.random() < 0.5,
        store_schema=random.random() < 0.8,
    )
    return table.to_pylist()


def _random_forms(random: Random) -> Forms:
    forms = random.choice(_FORMS)
    choice = random.random()
    if choice < 0.15:
        return tuple(pa.list_(kind) for kind in _no_dictionaries(forms))
    if choice < 0.3:
        inner = random.choice(_FORMS)[0]
        return tuple(pa.struct([("u", kind), ("v", inner)]) for kind in _no_dictionaries(forms))
    if choice < 0.35:
        return tuple(pa.map_(pa.string(), kind) for kind in _no_dictionaries(forms))
    return forms


def _no_dictionaries(forms: Forms) -> Forms:
    return tuple(kind for kind in forms if not isinstance(kind, pa.DictionaryType))


def _divided(keys: list[Callable[[Random], Any]], random: Random) -> dict[str, Any]:
    return {f"p{number}": nullable(random, make) for number, make in enumerate(keys)}


def _path(divided: dict[str, Any]) -> str:
    def told(value: Any) -> str:
        return "__HIVE_DEFAULT_PARTITION__" if value is None else quote(str(value), safe="")

    return "/".join(f"{key}={told(value)}" for key, value in divided.items())
