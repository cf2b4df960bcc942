"""`headrace gc`, `compact`, `index` and `verify --repair-manifest`: what they print and leave."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.command import run
from support.shards import numbered_batch, write_shards_of


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A dataset of two versions, the first of which names a shard that the second does not."""
    folder = str(tmp_path / "d")
    write_shards_of(folder, [numbered_batch(0, 50)])
    write_shards_of(folder, [numbered_batch(0, 80)], mode="overwrite", stem="new")
    return folder


def test_gc_says_what_would_go_and_what_went(url: str) -> None:
    """A dry run lists files with sizes and removes nothing; the same in earnest removes them."""
    dry = run("gc", url, "--older-than", "0", "--dry-run")
    lines = run("gc", url, "--older-than", "0", "--dry-run", "--json").stdout.splitlines()
    before = sorted(path.name for path in Path(url).rglob("*.arrow"))
    done = json.loads(run("gc", url, "--older-than", "0", "--json").stdout.splitlines()[-1])
    after = sorted(path.name for path in Path(url).rglob("*.arrow"))

    assert "shard-00000.arrow" in dry.stdout
    assert "would remove 1 version, 3 files" in dry.stdout
    assert {**done, "removed": False} == json.loads(lines[-1])
    assert (6, 3, "new-00000.arrow") == (len(before), len(after), after[-1])
    assert "match the manifest" in run("verify", url).stdout


def test_gc_leaves_young_files(url: str) -> None:
    """By default nothing goes that is younger than a day, and the summary says so."""
    done = run("gc", url)

    assert 0 == done.returncode
    assert "removed 0 versions, 0 files" in done.stdout


def test_inspect_lists_the_versions_that_can_be_opened(url: str) -> None:
    """Each with samples and time, the current one marked; the one that is shown may be older."""
    versions = json.loads(run("inspect", url, "--json").stdout)["versions"]
    old, current = (version["fingerprint"] for version in versions)
    text = run("inspect", url).stdout.splitlines()[-2:]
    older = run("inspect", url, "--fingerprint", old).stdout.splitlines()[-2:]

    assert [50, 80] == [version["sample_count"] for version in versions]
    assert [current, old] == [line.split()[0] for line in text]
    assert ["80 samples  current, shown", "50 samples"] == [line.split(None, 2)[2] for line in text]
    assert ["80 samples  current", "50 samples  shown"] == [
        line.split(None, 2)[2] for line in older
    ]


def test_inspect_shows_packed_rows(tmp_path: Path) -> None:
    """Each length of rows that was indexed, shortest first; none without an index."""
    folder = str(tmp_path / "corpus")
    schema = pa.schema([pa.field("tokens", pa.list_(pa.int32()), nullable=False)])
    documents = pa.RecordBatch.from_pylist([{"tokens": [1] * 16}] * 10, schema)
    write_shards_of(folder, [documents])
    bare = json.loads(run("inspect", folder, "--json").stdout)
    for length in ("64", "32"):
        assert 0 == run("index", folder, "--pack-length", length).returncode
    packed = json.loads(run("inspect", folder, "--json").stdout)["packed"]

    assert [] == bare["packed"]
    assert [32, 64] == [rows["length"] for rows in packed]
    assert all(160 <= rows["row_count"] * rows["length"] <= 320 for rows in packed)
    assert [["tokens"]] * 2 == [rows["columns"] for rows in packed]
    shown = f"packed       {packed[1]['row_count']} rows of 64 (tokens), read as NAME:64"
    assert shown in run("inspect", folder).stdout


@pytest.mark.parametrize("older_than", ["soon", "-1h", "7"])
def test_gc_refuses_what_is_no_time(url: str, older_than: str) -> None:
    """A wrong time is misuse."""
    done = run("gc", url, "--older-than", older_than)

    assert (2, 1) == (done.returncode, done.stderr.count("\n"))


def test_gc_refuses_where_nothing_tells_what_is_needed(tmp_path: Path) -> None:
    """Without a headrace.json no file is removed."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.arrow").write_bytes(b"x")

    done = run("gc", str(tmp_path), "--older-than", "0")

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))
    assert (tmp_path / "shards" / "a.arrow").exists()


def test_repair_leaves_a_whole_dataset_alone(url: str) -> None:
    """Where nothing is wrong nothing is written."""
    before = Path(url, "headrace.json").read_bytes()
    done = run("verify", url, "--repair-manifest")

    assert (0, "nothing to repair" in done.stdout) == (done.returncode, True)
    assert before == Path(url, "headrace.json").read_bytes()


def test_repair_says_what_is_lost(url: str) -> None:
    """A damaged block is a line and exit code 1; what is left verifies."""
    shard = Path(url, "shards", "new-00000.arrow")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)

    lines = run("verify", url, "--repair-manifest", "--json")
    lost, summary = (json.loads(line) for line in lines.stdout.splitlines())
    again = run("verify", url)

    assert (1, 0) == (lines.returncode, again.returncode)
    assert 80 == summary["samples_lost"] + summary["sample_count"]
    assert ("new-00000.arrow", summary["samples_lost"]) == (lost["shard"], lost["sample_count"])


@pytest.mark.parametrize(
    "options", [("--shards", "x"), ("--repair-manifest", "--fingerprint", "x")]
)
def test_repair_refuses_options_that_mean_nothing(url: str, options: tuple[str, ...]) -> None:
    """Options that do not go together are misuse."""
    assert 2 == run("verify", url, *options).returncode


def test_index_makes_a_dataset_of_files_elsewhere(tmp_path: Path) -> None:
    """What was indexed is inspected and verified by the URLs of the index and of its source."""
    source, url = tmp_path / "one.parquet", str(tmp_path / "index")
    pq.write_table(pa.table({"number": list(range(70))}), source)

    text = run("index", str(source), "--to", url)
    facts = json.loads(run("index", str(source), "--to", url, "--json").stdout)
    named = f"{url} from {source}"
    shown = json.loads(run("inspect", named, "--json").stdout)

    assert (0, "") == (text.returncode, text.stderr)
    assert f"70 samples of {source} (parquet)" in text.stdout
    assert f"serve NAME='{named}'" in text.stdout
    assert (70, facts["fingerprint"]) == (shown["sample_count"], shown["fingerprint"])
    assert "match the manifest" in run("verify", named).stdout
    assert "name them" in run("inspect", url).stderr


def test_index_needs_something_to_index(tmp_path: Path) -> None:
    """An empty folder is told as such."""
    done = run("index", str(tmp_path), "--to", str(tmp_path / "index"))

    assert (1, 1) == (done.returncode, done.stderr.count("\n"))


def test_compact_rewrites_once_and_then_rests(tmp_path: Path) -> None:
    """Ten small shards become one; the text and the JSON say what was done, or that nothing was."""
    url = str(tmp_path / "ds")
    write_shards_of(url, [numbered_batch(at, at + 10) for at in range(0, 100, 10)])
    first = run("compact", url, "--json")
    again = run("compact", url)
    wrong = run("compact", url, "--shard-bytes", "1KiB", "--block-bytes", "1MiB")

    report = json.loads(first.stdout)
    assert (10, 1, 100) == (
        report["shards_before"],
        report["shard_count"],
        report["sample_count"],
    ), first.stderr
    assert report["written"]
    assert "nothing was written" in again.stdout
    assert report["fingerprint"] in again.stdout
    assert 2 == wrong.returncode
    assert "expected at least --block-bytes" in wrong.stderr
