"""Conversions check their arguments before Spark is asked for anything."""

from __future__ import annotations

import inspect
from typing import Any

import pyarrow as pa
import pytest

from headrace.converter import WriteOptions, convert_files, make_converter, write_shards
from headrace.converter.text import TextOptions
from headrace.errors import BadArgumentError


class _Frame:
    """Has what tells a DataFrame of Spark, and nothing that could be asked."""

    sparkSession = None  # noqa: N815 - its name
    mapInArrow = None  # noqa: N815


def _write(**given: Any) -> None:
    write_shards(**{"df": _Frame(), "url": "/nowhere", **given})


def _make(**given: Any) -> None:
    make_converter(**{"df": _Frame(), "cache_dir": "/nowhere", **given})


def _convert(**given: Any) -> None:
    convert_files(**{"source": "/nowhere", "url": "/nowhere", "source_format": "csv", **given})


WRONG: dict[str, list[Any]] = {
    "df": [None, [1], {"a": 1}, pa.table({"a": [1]})],
    "url": [None, "", 3, b"x"],
    "columns": ["image", [1], {"a"}, 3, {"a": 1}],
    "types": ["int64", ["a"], 3],
    "shapes": [(2, 2), "a", {1: (2,)}],
    "formats": ["jpeg", 3],
    "classes": ["cat", ["cat"], {"label": "cat"}, {"label": {"cat"}}, {"label": [1]}],
    "splits": [3, "", ["train"], {"train": "0.9"}, {"train": None}, {1: 1.0}],
    "compression": [3, "", b"zstd"],
    "compression_level": ["3", 1.5, True],
    "hashes": ["sha1", [1], {"sha1"}],
    "source": [None, "", 3, b"x"],
    "source_format": ["orc", None, 3],
    "source_options": [{"source": "mds"}, "mds"],
    "text": ["utf-8", {"encoding": "utf-8"}],
    "images": ["none", {"label": "none"}],
    "left_out": ["print", 3],
    "notice": ["print", 3],
    "spill_folder": ["", 3, b"x"],
    "threads": ["2", 0, 1.5, True],
    "spark": ["local[*]", 3],
    "function": [len, "f", 3],
    "shuffle_seed": ["7", 1.5, True],
    "split_seed": ["7", None, 1.5],
    "shard_bytes": ["64MiB", 1e6, 0, None, True],
    "block_bytes": ["1", 0, 2.5],
    "mode": ["replace", None, 3],
    "format": ["parquet", None],
    "write": ["zstd", {"compression": "zstd"}, 3],
    "options": [{"endpoint": "x"}, "x"],
    "progress": ["dots", 3],
    "cache_dir": [3, b"x"],
    "expire_after_s": ["60", -1, float("nan"), True],
}


@pytest.mark.parametrize(
    ("call", "public", "field"),
    [
        pytest.param(call, public, field, id=f"{public.__name__}-{field}")
        for call, public in (
            (_write, write_shards),
            (_make, make_converter),
            (_convert, convert_files),
            (WriteOptions, WriteOptions),
        )
        for field in WRONG
        if field in inspect.signature(public).parameters
    ],
)
def test_an_argument_of_another_type_is_refused_by_its_name(
    call: Any, public: Any, field: str
) -> None:
    """By what was found and what is wanted."""
    del public
    for value in WRONG[field]:
        with pytest.raises(BadArgumentError, match=rf"{field}.* (is|are) .*expected"):
            call(**{field: value})


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("null_values", "NA"),
        ("null_values", [None]),
        ("encoding", None),
        ("delimiter", 44),
        ("header", "no"),
        ("on_error", None),
    ],
)
def test_how_text_is_read_is_refused_by_its_name(field: str, given: Any) -> None:
    """The letters of one word would each stand for a null."""
    with pytest.raises(BadArgumentError, match=rf"{field} is .*expected"):
        TextOptions(**{field: given})


def test_one_name_is_no_list_of_columns() -> None:
    """Its letters would be names."""
    with pytest.raises(BadArgumentError, match=r"columns is 'image'.*pass \['image'\]"):
        _write(columns="image")


def test_what_is_no_frame_of_spark_is_told_how_to_become_one() -> None:
    """As a table of Arrow, or a DataFrame of pandas."""
    with pytest.raises(BadArgumentError, match=r"pyarrow.lib.Table; .*spark.createDataFrame"):
        _write(df=pa.table({"a": [1]}))
