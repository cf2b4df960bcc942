"""Tests of `headrace shuffle`: its figures are those of the order itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.command import run
from support.datasets import write_dataset

_SAMPLES, _LABELS = 60_000, 50


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Samples of 80 bytes in sorted labels."""
    url = str(tmp_path_factory.mktemp("sorted"))
    labels = np.arange(_SAMPLES) * _LABELS // _SAMPLES
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(_SAMPLES * 9)), 9)
    table = pa.table({"label": labels, "values": values})
    write_dataset(url, table, shard_samples=[_SAMPLES // 4] * 4, block_bytes=8000)
    return url


def test_choices_are_compared(url: str, tmp_path: Path) -> None:
    """What fits into memory is uniform, and less memory is less even and as many reads."""
    picture = tmp_path / "order.png"
    options = ("--label", "label", "--run-bytes", "8KiB", "--run-bytes", "16KiB")
    memories = ("--shuffle-bytes", "500KiB", "--shuffle-bytes", "2GiB")

    done = run("shuffle", url, *options, *memories, "--picture", str(picture), "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]

    assert [False, True, False, True] == [row["uniform"] for row in rows]
    assert all(0.9 < variance < 1.1 for row in rows[1::2] for variance in row["variances"][:2])
    assert all(row["variances"][1] > 1.5 for row in rows[::2])
    assert rows[0]["reads_per_gib"] == pytest.approx(2 * rows[2]["reads_per_gib"], rel=0.1)
    assert rows[0]["price_per_tib"] == pytest.approx(rows[0]["reads_per_gib"] * 1024 * 0.4e-6)
    assert rows[0]["first_batch_bytes"] < rows[1]["first_batch_bytes"]
    assert picture.stat().st_size > 1000


def test_a_table_reads_well_and_says_when_a_uniform_order_is_free(url: str) -> None:
    """Few blocks may be read for the labels, which is said; the variances are those of chance."""
    done = run("shuffle", url, "--label", "label", "--read", "200KiB")
    variances = re.findall(r"  (\d\.\d\d) / (\d\.\d\d) / \d\.\d\d  ", done.stdout)

    assert 0 == done.returncode
    assert "blocks were read" in done.stderr
    assert "reads each block only once in any order" in done.stdout
    assert 3 == len(variances) == done.stdout.count("(uniform)")
    assert all(0.9 < float(each) < 1.1 for row in variances for each in row)


def test_large_row_groups_are_told_where_memory_does_not_hold_them(tmp_path: Path) -> None:
    """With how many of them are mixed at a time, and what converting gives."""
    pq.write_table(pa.table({"x": range(1 << 16)}), tmp_path / "1.parquet", row_group_size=1 << 13)
    memories = ("--shuffle-bytes", "128KiB", "--run-bytes", "16KiB")

    told = run("shuffle", str(tmp_path), *memories).stdout

    assert "KiB here: 128 KiB mixes 2 of them at a time" in told, told
    assert "of runs of 16 KiB it would mix 8" in told, told
    assert "hold" not in run("shuffle", str(tmp_path)).stdout.replace("holds", "")


def test_what_is_not_there_is_misuse(url: str) -> None:
    """A wrong column is named, with those that there are."""
    done = run("shuffle", url, "--label", "klass")

    assert 2 == done.returncode
    assert "there are label, values" in done.stderr


def test_lists_are_not_labels(url: str) -> None:
    """The error names the type of the column."""
    done = run("shuffle", url, "--label", "values")

    assert 2 == done.returncode
    assert "column 'values' has the type fixed_size_list<item: double>[9]" in done.stderr
