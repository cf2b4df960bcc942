"""Shards of lines read as Mosaic's own readers read them; `test_mds_mosaic` asks the real ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.errors import ManifestCorruptError, ShardCorruptError
from headrace.storage import open_dataset, store_index
from storage.mds.lines_make import MARKS, ROWS, lines_of, write_lines
from storage.mds.mds_make import change_index, texts, write_mds
from storage.mds.mds_values import table_of


@pytest.mark.parametrize("newline", ["\n", "\r\n", "<end>"])
@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv"])
def test_lines_are_samples(tmp_path: Path, form: str, newline: str) -> None:
    """Values come back under every format and end of line, columns sorted by name."""
    write_lines(tmp_path, form, newline=newline)
    mark = MARKS.get(form, "\0")

    with open_dataset(str(tmp_path)) as dataset:
        found = table_of(dataset)

    kinds = {"number": pa.int64(), "ratio": pa.float64(), "text": pa.string()}
    assert kinds == {field.name: field.type for field in found.schema}
    assert [{**row, "text": row["text"].replace(mark, ";")} for row in ROWS] == found.to_pylist()


def test_lines_and_binary_shards_are_one_dataset(tmp_path: Path) -> None:
    """An index may hold shards of several formats, and may be stored elsewhere."""
    write_lines(tmp_path / "d", "json")
    write_mds(tmp_path / "d", texts(5), folder="binary")
    store_index(str(tmp_path / "d"), str(tmp_path / "index"))

    indexed = f"{tmp_path / 'index'} from {tmp_path / 'd'}"
    with open_dataset(str(tmp_path / "d")) as one, open_dataset(indexed) as other:
        assert [2**62, -7, 0, 0, 1, 2, 3, 4] == table_of(one).column("number").to_pylist()
        assert table_of(one).equals(table_of(other))
        assert one.fingerprint == other.fingerprint


@pytest.mark.parametrize(
    ("form", "content", "found"),
    [
        ("json", b"{}\n", "1 whole lines found, but the index says 3"),
        ("json", lines_of("json", "\n").encode()[:-1], "2 whole lines found"),
        ("json", b"[1]\n{}\n{}\n", "not a JSON object"),
        ("json", b'{"number": 1, "text": ""}\n{}\n{}\n', "no value of 'ratio'"),
        (
            "json",
            b'{"ratio": 1.5, "number": "1", "text": ""}\n{}\n{}\n',
            "'1' is not a value of type int",
        ),
        (
            "json",
            b'{"ratio": 1.5, "number": 1, "text": null}\n{}\n{}\n',
            "'None' is not a value of type str",
        ),
        ("json", b"[" * 100_000 + b"\n\n\n", "sample 0"),
        ("json", b'{"ratio": 1.5, "number": 1, "text": "\\ud800"}\n' * 3, "column 'text'"),
        ("json", b'{"ratio": 1.5, "number": 1%030d, "text": ""}\n' % 0 * 3, "number"),
        ("json", b"\xff\n\n\n", "utf-8"),
        ("csv", b"number,ratio,words\n1,2,a\n1,2,b\n1,2,c\n", "its first line starts"),
        ("csv", b"number,ratio,text\n1,2\n1,2,b\n1,2,c\n", "2 values in a line, 3 expected"),
        ("csv", b"number,ratio,text\n1.5,2,a\n1,2,b\n1,2,c\n", "invalid literal for int"),
        ("csv", b"number,ratio,text\n1,x,a\n1,2,b\n1,2,c\n", "could not convert string"),
    ],
    ids=range(14),
)
def test_lines_that_are_no_samples_are_refused(
    tmp_path: Path, form: str, content: bytes, found: str
) -> None:
    """Each with the shard, and what was found instead."""
    path = write_lines(tmp_path, form, content=content)

    with (
        open_dataset(str(tmp_path)) as dataset,
        pytest.raises(ShardCorruptError, match=rf"{path.name}.*{found}"),
    ):
        dataset.read_block(0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("newline", ""),
        ("newline", 7),
        ("newline", "\ud800"),
        ("newline", "x" * 200),
        ("separator", None),
        ("column_encodings", ["float16", "int", "str"]),
        ("column_encodings", ["int"]),
        ("column_names", ["a", "a", "b"]),
        ("samples", 10_000),
    ],
)
def test_an_index_that_lies_of_lines_is_refused(tmp_path: Path, key: str, value: object) -> None:
    """Marks that are none, encodings that lines do not have, more lines than bytes."""
    write_lines(tmp_path, "xsv")
    change_index(tmp_path, {("shards", 0, key): value})

    with pytest.raises(ManifestCorruptError, match="shard 0"):
        open_dataset(str(tmp_path))
