"""Each value comes back as MosaicML Streaming gives it, from the store and through a server."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from headrace.compat.streaming import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
    dataframe_to_mds,
)
from storage.mds.mosaic_environment import mosaic
from support.private import end_servers
from support.running import server_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RED = Image.new("RGB", (4, 3), (200, 10, 10))
VALUES: dict[str, list[Any]] = {
    "int": [-3, 1 << 40],
    "int8": [np.int8(-5), np.int8(7)],
    "uint64": [np.uint64(1), np.uint64((1 << 64) - 1)],
    "float16": [np.float16(0.5), np.float16(2)],
    "float32": [np.float32(0.1), np.float32(-2)],
    "str": ["", "grün"],
    "bytes": [b"", b"\0\xff"],
    "str_int": [7, 1 << 80],
    "str_float": [0.1, -1e300],
    "str_decimal": [Decimal("1.10"), Decimal(-2)],
    "json": [{"a": [1, None]}, "text"],
    "ndarray": [np.arange(3, dtype=np.int16), np.arange(2, dtype=np.int16)],
    "ndarray:float32": [np.ones((2, 3), np.float32), np.zeros((1, 300), np.float32)],
    "ndarray:uint8:2,2": [np.eye(2, dtype=np.uint8), np.ones((2, 2), np.uint8)],
    "ndarray:int32:3": [np.arange(3, dtype=np.int32), np.ones(3, np.int32)],
    "png": [_RED, _RED],
    "pil": [_RED, _RED],
    "list[png]": [[_RED, _RED], [_RED]],
}


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place for private servers, which then end."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    yield
    end_servers(folder)


def _assert_same(wanted: Any, found: Any) -> None:
    if isinstance(wanted, list):
        for one, other in zip(wanted, found, strict=True):
            _assert_same(one, other)
    elif isinstance(wanted, Image.Image):
        assert (wanted.mode, wanted.size) == (found.mode, found.size)
        assert wanted.tobytes() == found.tobytes()
    elif isinstance(wanted, np.ndarray):
        assert (wanted.dtype, wanted.shape) == (found.dtype, found.shape)
        np.testing.assert_array_equal(wanted, found)
    else:
        assert (type(wanted), wanted) == (type(found), found)


@pytest.mark.parametrize("compression", [None, "zstd:5"])
def test_values_of_every_encoding(tmp_path: Path, compression: str | None) -> None:
    """Written by our writer, read by a server and without one; types included."""
    out = str(tmp_path / "mds")
    columns = {name.replace(":", "."): name for name in VALUES}
    with MDSWriter(out=out, columns=columns, compression=compression, hashes=["xxh64"]) as writer:
        for at in range(2):
            writer.write({column: VALUES[name][at] for column, name in columns.items()})

    stored, served = LocalDataset(out), list(StreamingDataset(local=out, batch_size=2))
    assert 2 == len(stored) == len(served)
    for at in range(2):
        assert set(columns) == set(stored[at]) == set(served[at])
        for column, name in columns.items():
            _assert_same(VALUES[name][at], stored[at][column])
            _assert_same(VALUES[name][at], served[at][column])


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv"])
def test_lines(tmp_path: Path, form: str) -> None:
    """Of each format."""
    makers: dict[str, Any] = {
        "json": JSONWriter,
        "csv": CSVWriter,
        "tsv": TSVWriter,
        "xsv": XSVWriter,
    }
    more = {"separator": "|"} if form == "xsv" else {}
    samples = [{"n": number, "t": f"t{number}", "f": number / 3} for number in range(20)]
    columns = {"n": "int", "t": "str", "f": "float"}
    with makers[form](out=str(tmp_path / "x"), columns=columns, size_limit=100, **more) as writer:
        for sample in samples:
            writer.write(sample)

    assert samples == LocalDataset(str(tmp_path / "x"))[:]


def test_a_running_server_gives_the_same(tmp_path: Path) -> None:
    """The samples, and their order; single samples are refused."""
    url = str(tmp_path / "a")
    with MDSWriter(out=url, columns={"n": "int", "t": "str"}) as writer:
        for number in range(30):
            writer.write({"n": number, "t": f"t{number}"})
    with server_of({"numbers": url}) as server:
        named = f"headrace://{server.address}/numbers"
        dataset = StreamingDataset(remote=named, batch_size=4, shuffle=True)
        seen = list(dataset)
        with pytest.raises(ValueError, match="gives no single samples"):
            dataset[3]
        with pytest.raises(RuntimeError, match="other"):
            StreamingDataset(remote=named.replace("numbers", "other"), batch_size=4)

    assert list(StreamingDataset(local=url, batch_size=4, shuffle=True)) == seen
    assert 30 == len(dataset)


def _halves(frame: Any, *, by: int) -> Iterator[dict[str, Any]]:
    for number in frame["n"]:
        yield {"half": number / by, "pair": np.array([number, number + 1], np.int64)}


def test_dataframes(spark: SparkSession, tmp_path: Path) -> None:
    """With types of the DataFrame, with columns, and through a function; refused by name."""
    frame = spark.range(20, numPartitions=2).selectExpr("id as n", "string(id) as t")
    url = str(tmp_path / "plain")
    assert (url, "") == dataframe_to_mds(frame, mds_kwargs={"out": url})
    assert [{"n": n, "t": str(n)} for n in range(20)] == LocalDataset(url)[:]

    chosen = str(tmp_path / "chosen")
    given = {"out": chosen, "columns": {"t": "json"}, "hashes": ["sha1"]}
    dataframe_to_mds(frame, mds_kwargs=given)
    assert [{"t": str(n)} for n in range(20)] == LocalDataset(chosen)[:]

    made = {"out": str(tmp_path / "made"), "columns": {"half": "float64", "pair": "ndarray:int64"}}
    dataframe_to_mds(frame, mds_kwargs=made, udf_iterable=_halves, udf_kwargs={"by": 2})
    last = LocalDataset(str(made["out"]))[19]
    assert (9.5, [19, 20]) == (last["half"], last["pair"].tolist())

    with pytest.raises(ValueError, match="merge_index is False"):
        dataframe_to_mds(frame, merge_index=False, mds_kwargs={"out": url})
    with pytest.raises(ValueError, match="x is not a column of input dataframe"):
        dataframe_to_mds(frame, mds_kwargs={"out": url, "columns": {"x": "int"}})


def test_a_failed_writer_leaves_no_dataset(tmp_path: Path) -> None:
    """Half of the samples would look like all of them."""
    with (
        pytest.raises(ZeroDivisionError),
        MDSWriter(out=str(tmp_path / "x"), columns={"n": "int"}) as writer,
    ):
        writer.write({"n": 1 // 0})

    with pytest.raises(RuntimeError, match="does not exist"):
        LocalDataset(str(tmp_path / "x"))


def test_pickles_are_read_only_on_request(tmp_path: Path) -> None:
    """They run code of their writer."""
    out = str(tmp_path / "x")
    with MDSWriter(out=out, columns={"n": "pkl"}) as writer:
        writer.write({"n": {1, 2}})

    with pytest.raises(ValueError, match="contains an unsafe type"):
        StreamingDataset(local=out, batch_size=1)
    assert {1, 2} == StreamingDataset(local=out, batch_size=1, allow_unsafe_types=True)[0]["n"]


@pytest.mark.long
@pytest.mark.timeout(900)  # of which most is for making the environment
def test_mosaicml_reads_what_our_writers_write(tmp_path: Path) -> None:
    """The real package, over all encodings that its reader's script can show."""
    names = ["int", "float32", "str", "bytes", "str_decimal", "json", "ndarray:float32"]
    columns = {name.replace(":", "."): name for name in names}
    with MDSWriter(out=str(tmp_path / "x"), columns=columns, compression="gz") as writer:
        for at in range(2):
            writer.write({column: VALUES[name][at] for column, name in columns.items()})

    found = mosaic().read(tmp_path / "x")

    assert 2 == len(found)
    assert set(columns) == set(found[0])
