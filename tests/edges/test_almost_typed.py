"""A column that stays text for the sake of a few values is told, with what to do."""

from __future__ import annotations

import itertools
import re
import shlex
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.converter.text import TextOptions, TextPieces, text_pieces
from headrace.converter.text.survey import Sizes
from headrace.storage import StoreOptions
from support.command import run


def _pieces(content: str, nulls: tuple[str, ...] = (), **types: pa.DataType) -> TextPieces:
    """Check a file in chunks of a few bytes."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "x.csv").write_text(content, encoding="utf-8")
        return text_pieces(
            f"{folder}/x.csv",
            "csv",
            how=TextOptions(null_values=nulls),
            types=types,
            options=StoreOptions(),
            sizes=Sizes(step_bytes=64),
        )


def _told(content: str, nulls: tuple[str, ...] = ()) -> list[str]:
    return [str(each) for each in _pieces(content, nulls).left_out.untyped]


def _column(*values: str) -> str:
    return "".join(f"{at},{value}\n" for at, value in enumerate(("a", *values)))


TOLD = {
    "a word for nothing": (
        _column("1", "NA", *"23456"),
        "a stays text: 'NA' in x.csv:3; pass --null-value NA for null in all columns",
    ),
    "mostly nothing": (
        _column("N/A", "N/A", "2.5", "N/A"),
        "a stays text: 'N/A' in x.csv:2; pass --null-value N/A for null in all columns",
    ),
    "several words": (
        _column("2024-02-29", "?", "-", "2024-03-01"),
        (
            "a stays text: '?' in x.csv:3; pass --null-value '?' --null-value - for null in all "
            "columns"
        ),
    ),
    "a rare word of any kind": (
        _column(*"123456789", "broken", *"1234567890"),
        "a stays text: 'broken' in x.csv:11; pass --null-value broken for null in all columns",
    ),
    "in quotes": (
        _column("1", '""', "3"),
        "a stays text: '' in x.csv:3; it is in quotes, so it is not null; write nulls unquoted",
    ),
    "prices": (
        _column("1.25", "1.50", "3"),
        (
            "a stays text: '1.50' in x.csv:3; the number prints in another way, pass --type "
            "a=float64 to have numbers"
        ),
    ),
    "prices and nothing": (
        _column("1.25", "NA", "1.50"),
        (
            "a stays text: 'NA' in x.csv:3; pass --null-value NA for null in all columns, and "
            "--type a=float64 to have numbers"
        ),
    ),
    "far behind": (
        _column(*["12345"] * 500, "null", *["7"] * 500),
        "a stays text: 'null' in x.csv:502; pass --null-value null for null in all columns",
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_it_is_told_with_the_first_value_and_its_line(case: str) -> None:
    """And with the options that give the column a type."""
    content, told = TOLD[case]

    assert [told] == _told(f"0{content[1:]}")


SILENT = {
    "codes": _column("01234", "90210"),
    "text": _column("one", "two", "three", "four", "5"),
    "a word among few": _column("x", "1", "2"),
    "nothing but words": _column("NA", "NA"),
    "large numbers": _column("9223372036854775808", "1"),
    "large numbers and nothing": _column("9223372036854775808", "NA", "1"),
    "numbers": _column("1", "", "2"),
    "floats in two ways": _column("1.0", "2"),
}


@pytest.mark.parametrize("case", SILENT)
def test_other_columns_are_not_mentioned(case: str) -> None:
    """Those that have a type, and those that are text indeed."""
    assert [] == _told(f"0{SILENT[case][1:]}")


_VALUES = ["1", "2", "-3", "2.5", "1.50", "1e5", "NA", "?", "", '""', "true", "01", "x,y"]


@given(st.lists(st.sampled_from(_VALUES), min_size=1, max_size=40))
def test_the_advice_gives_the_column_a_type(values: list[str]) -> None:
    """Whatever is in it, and in whichever chunks: nobody is sent in circles."""
    content = _column(*(f'"{value}"' if "," in value else value for value in values))
    for told in _pieces(f"0{content[1:]}").left_out.untyped:
        if "in quotes" in told.remedy:
            continue
        options = shlex.split(told.remedy)
        nulls = [after for at, after in itertools.pairwise(options) if "null-" in at]
        typed = re.search("--type a=float64", told.remedy)
        pieces = _pieces(f"0{content[1:]}", tuple(nulls), **({"a": pa.float64()} if typed else {}))

        assert told.type == pieces.schema.field("a").type


def test_the_command_prints_a_line_a_column(tmp_path: Path) -> None:
    """On standard error, where it succeeds as well."""
    (tmp_path / "x.csv").write_text("a,b,c\n1,NA,NA\n2,2,x\nNA,3,y\n")
    done = run("convert", str(tmp_path / "x.csv"), str(tmp_path / "out"))

    assert 0 == done.returncode
    assert [
        "a stays text: 'NA' in x.csv:4; pass --null-value NA for null in all columns",
        "b stays text: 'NA' in x.csv:2; pass --null-value NA for null in all columns",
    ] == done.stderr.splitlines()
