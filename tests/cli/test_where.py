"""Tests of `--where`: every command means the same samples by an expression."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from support.command import run
from support.datasets import write_dataset
from support.running import server_of

WHERE = "label < 10 and lang = 'en'"


def _lines(*arguments: str) -> list[dict[str, object]]:
    ran = run(*arguments)
    assert 0 == ran.returncode, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Samples sorted by label, in three languages, one of them null."""
    found = str(tmp_path / "d")
    numbers = list(range(3000))
    columns = {
        "label": [number // 100 for number in numbers],
        "lang": [("en", "de", None)[number % 3] for number in numbers],
    }
    write_dataset(found, pa.table(columns), shard_samples=[1000, 2000], block_bytes=512)
    return found


def test_commands_agree_on_what_is_kept(url: str) -> None:
    """`inspect` counts, `order` and `read` give the same ids, and mistakes are pointed at."""
    shared = ["--where", WHERE, "--seed", "5", "--json"]
    with server_of({"d": url}) as server:
        (facts,) = _lines("inspect", url, "--where", WHERE, "--json")
        read = _lines("read", server.address, "d", "--batches", "1", "--ids", *shared)
    ordered = _lines("order", url, "--global-batch-size", "256", *shared)

    assert 334 == facts["kept_count"]
    assert [each["ids"] for each in ordered] == [each["ids"] for each in read]
    wrong = run("inspect", url, "--where", "lable < 3 or lang = 'en'")
    assert 2 == wrong.returncode
    assert wrong.stderr.splitlines()[1:] == ["  lable < 3 or lang = 'en'", "  ^"]


@pytest.mark.long
def test_a_load_test_proves_what_is_kept(url: str, tmp_path: Path) -> None:
    """Of one dataset, and of a mixture each dataset of which has a filter."""
    mixture = tmp_path / "mixture.json"
    entries = [{"name": "d", "where": "lang is null"}, {"name": "e", "where": "label = 3"}]
    mixture.write_text(json.dumps({"datasets": entries}))
    few = ["--ranks", "2", "--batch-size", "16", "--epochs", "1", "--end", "uneven", "--json"]

    with server_of({"d": url, "e": url}) as server:
        for subject in (["d", "--where", WHERE], ["--mixture", str(mixture), "--manifest", url]):
            (proof,) = _lines("loadtest", server.address, *subject, "--manifest", url, *few)
            assert proof["passed"]
