"""Nasty files are read as Python's csv and json modules read them, or refused by line."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from edges.text_corpus import CSV, JSON, Case
from headrace.converter.text import TextOptions, TextPieces, text_pieces
from headrace.errors import BadArgumentError
from headrace.storage import StoreOptions

UNPACKED = {".gz": gzip.decompress, ".bz2": bz2.decompress}


def _pieces(case: Case, folder: Path, *, skip: bool) -> TextPieces:
    (folder / case.name).write_bytes(case.content)
    return text_pieces(
        str(folder / case.name),
        "json" if case.name.endswith("json") else "csv",
        how=TextOptions(on_error="skip" if skip else "refuse", **case.options),
        types={},
        options=StoreOptions(),
        threads=1,
    )


def _rows(pieces: TextPieces) -> list[dict[str, Any]]:
    batches = [batch for piece in range(pieces.count) for batch in pieces.read(piece)]
    return [row for batch in batches for row in batch.to_pylist()]


def _text(case: Case) -> str:
    content = UNPACKED.get(Path(case.name).suffix, bytes)(case.content)
    encoding = case.options.get("encoding", "utf-8-sig")
    # What cannot be decoded is in lines that are refused; UTF-16 of one is whole by its code units.
    return content.decode(encoding, errors="replace")


def _refused_lines(case: Case, folder: Path) -> list[int]:
    with pytest.raises(BadArgumentError) as caught:
        _pieces(case, folder, skip=False)
    return [int(line) for line in re.findall(r"x\.\w+:(\d+): ", str(caught.value))]


def _check_refusals(case: Case, folder: Path) -> TextPieces | None:
    """Return what is read without the lines that are refused."""
    if case.whole:
        with pytest.raises(BadArgumentError, match=re.escape(case.whole)):
            _pieces(case, folder, skip=True)
        return None
    if case.lines:
        assert list(case.lines) == _refused_lines(case, folder)
    pieces = _pieces(case, folder, skip=True)
    assert list(case.lines) == [refusal.line for refusal in pieces.left_out.first]
    assert len(case.lines) == pieces.left_out.count
    return pieces


def _csv_rows(case: Case) -> list[list[str]]:
    """Return what the csv module reads but for records that start in refused lines."""
    tab = case.name.endswith(".tsv")
    delimiter = case.options.get("delimiter", "\t" if tab else ",")
    reader = csv.reader(io.StringIO(_text(case), newline=""), delimiter=delimiter)
    found, line = [], 1
    for row in reader:
        if line not in case.lines:
            found.append(row)
        line = reader.line_num + 1
    return found


@pytest.fixture(autouse=True)
def _long_fields() -> Any:
    before = csv.field_size_limit(1 << 24)
    yield
    csv.field_size_limit(before)


@pytest.mark.parametrize("case", CSV, ids=lambda case: case.id)
def test_csv_is_read_as_python_reads_it(case: Case, tmp_path: Path) -> None:
    """Every value as text, with nothing for a null; what is refused is named by its line."""
    pieces = _check_refusals(case, tmp_path)
    if pieces is None:
        return
    expected = _csv_rows(case)
    if case.options.get("header", True):
        expected = expected[1:]
    names = pieces.schema.names
    if len(names) > 1:
        expected = [row for row in expected if row]
    found = [
        ["" if row[name] is None else _printed(row[name]) for name in names]
        for row in _rows(pieces)
    ]

    assert [row or [""] for row in expected] == found


def _printed(value: object) -> str:
    return value if isinstance(value, str) else str(value)


@pytest.mark.parametrize("case", JSON, ids=lambda case: case.id)
def test_json_is_read_as_python_reads_it(case: Case, tmp_path: Path) -> None:
    """Every record that is not refused is equal; what lacks a name has a null there."""
    pieces = _check_refusals(case, tmp_path)
    if pieces is None:
        return

    expected = [value for line, value in _json_values(_text(case)) if line not in case.lines]
    found = _rows(pieces)
    assert len(expected) == len(found)
    assert all(_is_same(one, other) for one, other in zip(expected, found, strict=True))


def _json_values(text: str) -> list[tuple[int, Any]]:
    """Return the records and their lines, those of one array too; what is broken is left out."""
    decoder, at = json.JSONDecoder(strict=True), 0
    found: list[tuple[int, Any]] = []
    while (at := re.compile(r"[\s,]*").match(text, at).end()) < len(text):  # type: ignore[union-attr]
        line = text.count("\n", 0, at) + 1
        if text[at] == "[" and not found:
            at += 1
            continue
        if text[at] == "]":
            break
        try:
            value, at = decoder.raw_decode(text, at)
            found.append((line, value))
        except (ValueError, RecursionError):
            at = (text + "\n").index("\n", at) + 1
    return found


def _is_same(expected: Any, found: Any) -> bool:
    if isinstance(expected, dict):
        return all(_is_same(expected.get(name), found[name]) for name in {*expected, *found})
    if isinstance(expected, list):
        return len(expected) == len(found) and all(map(_is_same, expected, found))
    if isinstance(expected, bool | str) or expected is None:
        return bool(type(expected) is type(found) and expected == found)
    if math.isnan(expected):
        return math.isnan(found)
    return bool(expected == found and math.copysign(1, expected) == math.copysign(1, found))


def test_the_corpus_is_as_large_as_it_says() -> None:
    """At least 60 files, none twice."""
    ids = [(case.name, case.id) for case in (*CSV, *JSON)]

    assert len(ids) == len(set(ids)) >= 60
