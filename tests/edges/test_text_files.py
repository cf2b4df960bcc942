"""Files of CSV, JSON and text become datasets: by the command, without Java, exactly."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.converter import Progress, WriteOptions, convert_files, write_shards
from headrace.converter.spark.text_rows import rows_on_spark
from headrace.converter.text import LeftOut, TextOptions, TextPieces, text_pieces
from headrace.converter.text.survey import Sizes
from headrace.errors import BadArgumentError, ColumnNotFoundError
from headrace.storage import StoreOptions, open_dataset, open_store
from support.command import run
from support.s3 import S3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = (
    b"id,zip,delay,note\r\n"
    b'1,01234,-3.5,"late, ""very"""\r\n'
    b'2,00042,,""\r\n'
    b'3,90210,12.25,"C:\\"\r\n'
    b'4,NA,0.5,"two\r\nlines"\r\n'
)


def _samples(url: str) -> tuple[pa.Schema, list[dict[str, Any]]]:
    with open_dataset(url) as dataset:
        blocks = [dataset.read_block(block) for block in range(dataset.block_count)]
        return dataset.schema, pa.Table.from_batches(blocks).to_pylist()


def _convert(
    folder: Path | str, target: Path, kind: Any = "csv", **rest: Any
) -> list[dict[str, Any]]:
    convert_files(str(folder), str(target), source_format=kind, **rest)
    return _samples(str(target))[1]


def test_flights_are_converted_without_java(tmp_path: Path) -> None:
    """`headrace convert flights.csv` on a machine without Java: every field as it stands."""
    (tmp_path / "flights.csv").write_bytes(FLIGHTS)
    environment = {**os.environ, "PATH": "/nowhere", "JAVA_HOME": ""}
    target = str(tmp_path / "out")
    arguments = (str(tmp_path / "flights.csv"), target, "--null-value", "NA")
    done = run("convert", *arguments, environment=environment)
    schema, samples = _samples(target)

    assert (0, "") == (done.returncode, done.stderr)
    assert {"id": "int64", "zip": "string", "delay": "double", "note": "string"} == {
        field.name: str(field.type) for field in schema
    }
    assert [
        {"id": 1, "zip": "01234", "delay": -3.5, "note": 'late, "very"'},
        {"id": 2, "zip": "00042", "delay": None, "note": ""},
        {"id": 3, "zip": "90210", "delay": 12.25, "note": "C:\\"},
        {"id": 4, "zip": None, "delay": 0.5, "note": "two\r\nlines"},
    ] == samples


def test_text_is_converted_where_spark_is_not_installed(tmp_path: Path) -> None:
    """Of what the converter needs, pyspark and py4j are for DataFrames alone."""
    (tmp_path / "flights.csv").write_bytes(FLIGHTS)
    command = (
        "import sys; sys.modules.update(pyspark=None, py4j=None); "
        "from headrace.cli.main import main; main()"
    )
    arguments = ["convert", str(tmp_path / "flights.csv"), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert "4 samples in 1 shard," in done.stdout


@pytest.mark.parametrize("kind", ["csv", "json", "text"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_first_pass_tells_how_far_it_is(tmp_path: Path, kind: str, *, packed: bool) -> None:
    """Then come the tasks; of packed files how much is left is not known."""
    long = b"some words " * 20
    line = b'{"a": 1, "b": "%s"}\n' % long if kind == "json" else b"12|%s\n" % long
    content = line * (9_000_000 // len(line))
    name = f"x.{kind}.gz" if packed else f"x.{kind}"
    (tmp_path / name).write_bytes(gzip.compress(content, 1) if packed else content)
    told: list[Progress] = []
    how = TextOptions(header=False, delimiter="|")
    _convert(tmp_path / name, tmp_path / "out", kind, progress=told.append, threads=1, text=how)
    checked = [progress.checked_bytes for progress in told]
    first = told[0]

    assert 0 < checked[0] < len(content)
    assert (0 if packed else len(content) - checked[0]) == first.unchecked_bytes
    assert [bool(number) for number in checked] == [not each.tasks_total for each in told]
    assert sorted(checked, key=bool, reverse=True) == checked


def _packed(suffix: str, content: bytes) -> bytes:
    if suffix == "zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as stream:
            stream.write(content)
        return sink.getvalue().to_pybytes()
    return gzip.compress(content) if suffix == "gz" else bz2.compress(content)


PACKED = {
    "whole": lambda one, other: one + other,
    "begins wrong": lambda one, other: one + b"XX" + other[2:],
    "cut": lambda one, other: one + other[:-5],
    "cut at its start": lambda one, other: one + other[:3],
    "rest": lambda one, other: one + other + b"rest",
}


@pytest.mark.parametrize("suffix", ["bz2", "gz", "zst"])
@pytest.mark.parametrize("damage", PACKED)
def test_of_a_packed_file_all_is_read_or_nothing(tmp_path: Path, suffix: str, damage: str) -> None:
    """Of several streams behind each other too; what follows the first is never left out."""
    one, other = _packed(suffix, b"a,b\n1,x\n"), _packed(suffix, b"2,y\n")
    (tmp_path / f"x.csv.{suffix}").write_bytes(PACKED[damage](one, other))
    if damage == "whole":
        found = _convert(tmp_path / f"x.csv.{suffix}", tmp_path / "out")
        assert [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}] == found
        return
    with pytest.raises(BadArgumentError, match=f"x.csv.{suffix} is damaged as a {suffix} file"):
        _convert(tmp_path / f"x.csv.{suffix}", tmp_path / "out")


@pytest.mark.long
def test_a_large_packed_file_is_read_whole(tmp_path: Path) -> None:
    """Streams of many blocks, larger than a read, and one that is empty."""
    lines = [f"{number},{number * 7919 % 100_003}\n" for number in range(300_000)]
    parts = [lines[:140_000], [], lines[140_000:]]
    content = b"".join(bz2.compress("".join(part).encode()) for part in parts)
    (tmp_path / "x.csv.bz2").write_bytes(bz2.compress(b"a,b\n") + content)
    found = _convert(tmp_path / "x.csv.bz2", tmp_path / "out")

    assert lines == [f"{row['a']},{row['b']}\n" for row in found]


@pytest.mark.parametrize("kind", ["csv", "json", "text"])
def test_what_folders_say_is_in_a_column_or_refused(tmp_path: Path, kind: str) -> None:
    """As Hive and Spark write partitions: ``year=2024`` is in no file below it."""
    for year, content in ((2023, b'{"year": 2023, "a": 1}\n'), (2024, b'{"a": 2}\n')):
        folder = tmp_path / "src" / f"year={year}"
        folder.mkdir(parents=True)
        line = b"a|year\n1|2\n" if kind == "csv" else content
        (folder / f"x.{kind}").write_bytes(line.replace(b"year", b"YEAR"))
    with pytest.raises(BadArgumentError, match=r"year=2023/x.* is in the folder 'year=2023'"):
        _convert(tmp_path / "src", tmp_path / "out", kind, text=TextOptions(delimiter="|"))

    assert not (tmp_path / "out").exists()


def test_a_partition_that_is_a_column_too_is_converted(tmp_path: Path) -> None:
    """Then nothing is lost."""
    for year in (2023, 2024):
        (tmp_path / "src" / f"year={year}").mkdir(parents=True)
        (tmp_path / "src" / f"year={year}" / "x.csv").write_bytes(b"a,year\n1,%d\n" % year)

    assert [{"a": 1, "year": 2023}, {"a": 1, "year": 2024}] == (
        _convert(tmp_path / "src", tmp_path / "out")
    )


@pytest.mark.parametrize("encoding", ["rot13", "hex", "idna", "punycode", "undefined", "none"])
def test_an_encoding_that_reads_no_text_is_refused(encoding: str) -> None:
    """Codecs of bytes, and those that cannot go on behind what they lack."""
    with pytest.raises(BadArgumentError, match=f"encoding is '{encoding}', expected"):
        TextOptions(encoding=encoding)


def test_what_is_left_out_is_counted_and_listed(tmp_path: Path) -> None:
    """With `--on-error skip`; without it nothing is written, and both lines are named."""
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,x\n2\n3,\xff\n4,y\n")
    source, target = str(tmp_path / "x.csv"), str(tmp_path / "out")
    with ThreadPoolExecutor() as at_once:
        running = at_once.submit(run, "convert", source, f"{target}-refused")
        done = run("convert", source, target, "--on-error", "skip", "--json")
        refused = running.result()
    existed = Path(f"{target}-refused").exists()

    # A busy machine may also tell how far it is.
    refusal, told = (
        [line for line in each.stderr.splitlines() if not line.startswith("checking:")]
        for each in (refused, done)
    )
    assert (2, False, 1) == (refused.returncode, existed, len(refusal))
    assert "x.csv:3: has 1 field, expected 2; x.csv:4: contains the byte ff" in refused.stderr
    assert (0, 2, 2) == (
        done.returncode,
        json.loads(done.stdout)["left_out"],
        json.loads(done.stdout)["sample_count"],
    )
    assert ["left out 2 records:", "  x.csv:3: has 1 field, expected 2"] == (told[:2])


def test_what_is_left_out_is_listed_where_nothing_is_left(tmp_path: Path) -> None:
    """Else nobody learns why there is no sample to write."""
    (tmp_path / "x.csv").write_bytes(b"a,b\n1,2,3\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.png").write_bytes(b"no image")
    expected = {
        "x.csv": "left out 1 record:\n  x.csv:2: has 3 fields, expected 2\n",
        "in": "left out 1 file (not a complete image): x.png (it starts with",
    }

    def skip(name: str) -> subprocess.CompletedProcess[str]:
        return run("convert", str(tmp_path / name), f"{tmp_path}/of-{name}", "--on-error", "skip")

    with ThreadPoolExecutor() as at_once:
        ended = list(at_once.map(skip, expected))
    for listed, done in zip(expected.values(), ended, strict=True):
        assert (2, True) == (done.returncode, listed in done.stderr), done.stderr
        assert "no samples to write" in done.stderr


def test_columns_are_told_by_their_names(tmp_path: Path) -> None:
    """In whichever order a file has them, with commas or tabs; other names are refused."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("a,b\n1,x\n")
    (tmp_path / "in" / "2.csv").write_text("b,a\ny,2\n")
    (tmp_path / "in" / "3.tsv").write_text("b\ta\nz\t3\n")

    samples = _convert(tmp_path / "in", tmp_path / "out")

    assert [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}] == samples
    (tmp_path / "in" / "4.csv").write_text("a,c\n4,w\n")
    with pytest.raises(BadArgumentError, match=r"4.csv:1: .* lacks 'b' and also has 'c'"):
        _convert(tmp_path / "in", tmp_path / "other")


def test_other_and_hidden_files_are_left_out_with_a_word(tmp_path: Path) -> None:
    """What the folder holds beside CSV is named; what is hidden, as Spark's marks are, is not."""
    for name in ("1.csv", "_SUCCESS", ".2.csv.crc", "README.md"):
        (tmp_path / name).write_text("a\n1\n")
    told: list[LeftOut] = []

    assert [{"a": 1}] == _convert(tmp_path, tmp_path.parent / "out", left_out=told.append)
    assert [("README.md",)] == [left.files for left in told]


def test_folders_of_splits_become_one_dataset_with_a_word(tmp_path: Path) -> None:
    """Nobody finds the test set among the training set without having been told."""
    for split in ("train", "Test", "2024"):
        (tmp_path / "in" / split).mkdir(parents=True)
        (tmp_path / "in" / split / "1.csv").write_text("a\n1\n")
    target = str(tmp_path / "out")
    done = run("convert", str(tmp_path / "in"), target)
    told: list[LeftOut] = []
    _convert(tmp_path / "in" / "train", tmp_path / "one", left_out=told.append)

    assert "the records of Test/, train/ become one dataset" in done.stderr
    assert 3 == len(_samples(target)[1])
    assert [()] == [left.merged for left in told]


def test_hexadecimal_digits_are_no_integers(tmp_path: Path) -> None:
    """A column of decimal numbers in which one is `0x1F` would mean 31 by it."""
    (tmp_path / "x.csv").write_text("a\n1\n0x1F\n")
    (tmp_path / "x.json").write_text('{"a": "1"}\n{"a": "-0X1f"}\n')
    write = WriteOptions(types={"a": "int64"})
    for name, line in (("x.csv", 3), ("x.json", 2)):
        with pytest.raises(BadArgumentError, match=f"{name}:{line}"):
            _convert(tmp_path / name, tmp_path / "out", name[2:], write=write)


def test_a_type_of_one_file_is_that_of_all(tmp_path: Path) -> None:
    """A column is settled over all files and all chunks: one value in the last changes it."""
    many = "".join(f"{number}\n" for number in range(1_500_000))
    (tmp_path / "1.csv").write_text(f"a\n{many}")
    (tmp_path / "2.csv").write_text(f"a\n{many}01\n")
    pieces = text_pieces(
        str(tmp_path), "csv", how=TextOptions(), types={}, options=StoreOptions(), threads=2
    )

    assert pa.string() == pieces.schema.field("a").type
    batches = [batch for piece in range(pieces.count) for batch in pieces.read(piece)]
    found = pa.Table.from_batches(batches).column("a")
    assert (3_000_001, "01", "1499999") == (len(found), found[-1].as_py(), found[-2].as_py())


def test_declared_types_are_checked_by_line(tmp_path: Path) -> None:
    """Of CSV and JSON alike, under the name that the column gets."""
    (tmp_path / "x.csv").write_text("a,b\n1,x\n300,y\n\n-1,z\n")
    (tmp_path / "x.json").write_text('{"a": 1}\n{"a": 300}\n{"a": -1}\n')
    options: Any = {"write": WriteOptions(types={"c": "uint8"}), "columns": {"a": "c"}}
    for name, lines in (("x.csv", "3: .*x.csv:5"), ("x.json", "2: .*x.json:3")):
        with pytest.raises(BadArgumentError, match=f"{name}:{lines}"):
            _convert(tmp_path / name, tmp_path / "out", name[2:], **options)
        skip = TextOptions(on_error="skip")
        samples = _convert(tmp_path / name, tmp_path / name[2:], name[2:], text=skip, **options)

        assert [{"c": 1}] == samples
    with pytest.raises(ColumnNotFoundError, match="d"):
        _convert(tmp_path / "x.csv", tmp_path / "out", write=WriteOptions(types={"d": "int8"}))


@pytest.mark.parametrize("then", ["1\n3\n", "1\n2\n3\n", "1\n", "", "1\nx\n", "1\n2,\n", '1\n"'])
def test_a_file_that_changes_between_the_passes_is_refused(tmp_path: Path, then: str) -> None:
    """No dataset appears of what was not checked."""
    path = tmp_path / "x.csv"
    path.write_text("a\n1\n2\n")

    def change(_: LeftOut) -> None:
        path.write_text(f"a\n{then}")

    with pytest.raises(BadArgumentError, match=r"x.csv was changed while it was read"):
        _convert(path, tmp_path / "out", left_out=change)
    assert not (tmp_path / "out" / "headrace.json").exists()


def _small_pieces(
    path: Path, kind: Any, null_values: Sequence[str] = ()
) -> tuple[TextPieces, pa.Table]:
    """Return the pieces of some records each, and what all of them hold."""
    pieces = text_pieces(
        str(path),
        kind,
        how=TextOptions(on_error="skip", null_values=tuple(null_values)),
        types={},
        options=StoreOptions(),
        sizes=Sizes(piece_bytes=100, step_bytes=50),
    )
    return pieces, _read(pieces)


def _read(pieces: TextPieces) -> pa.Table:
    batches = [batch for piece in range(pieces.count) for batch in pieces.read(piece)]
    return pa.Table.from_batches(batches, schema=pieces.schema)


_WRITTEN = (
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats().map(repr),
    st.floats(width=16, allow_nan=False).map(lambda number: f"{number:g}"),
    st.dates().map(str),
    st.sampled_from(["nan", "-inf", "-0", "-0.0", "0", "1e5", "true", "'", "0x1f", " 1"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)
_COLUMN = st.sampled_from(_WRITTEN).flatmap(
    lambda values: st.lists(values | st.sampled_from(["", "NA"]), min_size=20, max_size=20)
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(columns=st.lists(_COLUMN, min_size=2, max_size=4), quoting=st.sampled_from([0, 1]))
def test_checked_csv_is_read_as_it_was_checked(
    tmp_path: Path, columns: list[list[str]], quoting: Literal[0, 1]
) -> None:
    """The second pass, which parses numbers at once, gives what casting their text gives."""
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=quoting).writerows(
            [range(len(columns)), *zip(*columns, strict=True)]
        )
    pieces, read = _small_pieces(path, "csv", null_values=("NA",))
    careful = tuple(replace(piece, clean_ends=()) for piece in pieces.pieces)

    assert all(piece.clean_ends for piece in pieces.pieces)
    slowly = _read(replace(pieces, pieces=careful))
    assert (slowly.schema, repr(slowly.to_pydict())) == (read.schema, repr(read.to_pydict()))


def test_pieces_of_a_file_are_the_file(tmp_path: Path) -> None:
    """Cut anywhere: within quotes there is no cut, and lines go on being counted."""
    rows = [f'{number},"x\r\n""{number}"""\r\n' for number in range(200)]
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbf" + ("a,b\r\n" + "".join(rows) + "1\n").encode())
    pieces, read = _small_pieces(tmp_path / "x.csv", "csv")

    assert [402] == [refusal.line for refusal in pieces.left_out.first]
    assert pieces.count > 20
    assert [{"a": number, "b": f'x\r\n"{number}"'} for number in range(200)] == read.to_pylist()


def test_pieces_of_json_leave_out_what_the_first_pass_left_out(tmp_path: Path) -> None:
    """In every piece; a column that turns out to hold fractions holds them from the start."""
    lines = [json.dumps({"a": number if number % 7 else str(number)}) for number in range(200)]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines[1:], '{"a": 0.5}', "}"]))
    pieces, read = _small_pieces(tmp_path / "x.jsonl", "json")

    assert [*range(7, 200, 7), 201] == [refusal.line for refusal in pieces.left_out.first]
    assert pieces.count > 10
    assert [*(float(number) for number in range(200) if number % 7), 0.5] == (
        read.column("a").to_pylist()
    )


def test_json_in_a_bucket(tmp_path: Path, s3: S3) -> None:
    """Files of a store, packed and not, without anything of Spark's."""
    store = open_store(s3.url("json"))
    store.write("1.jsonl", b'{"x": 1}\n')
    store.write("2.json.gz", gzip.compress(b'[{"x": 2.5}]'))
    store.write("dir.json/part-0", b'{"x": 7}\n')
    both = [{"x": 1.0}, {"x": 2.5}]

    for name, rows in (("dir.json", [{"x": 7}]), ("1.jsonl", [{"x": 1}])):
        assert rows == _convert(s3.url("json") + f"/{name}", tmp_path / name, "json")
    store.delete("dir.json/part-0")
    assert both == _convert(s3.url("json"), tmp_path / "out", "json")


@pytest.mark.parametrize("seed", [None, 3])
def test_spark_gives_the_same_rows(spark: SparkSession, tmp_path: Path, seed: int | None) -> None:
    """With `--master` tasks read what one machine would read, shuffled or not."""
    (tmp_path / "x.csv").write_bytes(FLIGHTS)
    frame, settings, left = rows_on_spark(
        spark,
        str(tmp_path / "x.csv"),
        "csv",
        how=TextOptions(null_values=("NA",)),
        settings={
            "write": WriteOptions(types={"n": "int16"}),
            "columns": {"id": "n", "note": "note"},
            "shuffle_seed": seed,
        },
    )
    write_shards(frame, str(tmp_path / "out"), **settings)
    schema, samples = _samples(str(tmp_path / "out"))

    assert 0 == left.count
    assert pa.int16() == schema.field("n").type
    assert [(1, 'late, "very"'), (2, ""), (3, "C:\\"), (4, "two\r\nlines")] == sorted(
        (sample["n"], sample["note"]) for sample in samples
    )
