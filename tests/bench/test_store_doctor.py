"""What the doctor finds of a store, and what it concludes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.bench_cold_epoch import write
from headrace.bench import StoreDiagnosis, StoreNeed, diagnose_store
from headrace.bench.store_doctor import Rate, judge_store
from headrace.storage import SourceOptions, open_dataset
from support.command import run
from support.datasets import small_table, write_dataset
from support.s3 import S3
from support.slow_store import can_be_compiled, reached, slow_store


def _judged(need_mib_per_s: float) -> StoreDiagnosis:
    return judge_store(
        [Rate(1, 50.0, 40.0), Rate(2, 95.0, 42.0), Rate(4, 120.0, 66.0), Rate(8, 100.0, 160.0)],
        first_byte_ms=(20.0, 30.0),
        read_bytes=2 << 20,
        need_mib_per_s=need_mib_per_s,
        need_gets_per_s=100.0,
        get_price=0.4,
        cache_bytes=1 << 30,
    )


@pytest.mark.parametrize(
    ("need", "fits", "at_once", "said"),
    [
        (40.0, True, 1, "which it delivers with 1 at once"),
        (70.0, True, 2, "is fast enough"),
        (115.0, True, None, "only just"),
        (121.0, False, None, "delivers 120.0 at best, with 4 simultaneous reads"),
    ],
)
def test_conclusions(need: float, fits: object, at_once: int | None, said: str) -> None:
    """Fed with the fewest reads that suffice, just about fed, not fed."""
    found = _judged(need)

    assert (fits, at_once) == (found.fits, found.at_once)
    assert said in found.verdict
    assert 0.144 == pytest.approx(found.price_per_hour)  # 100 a second for 3,600 s


@pytest.mark.skipif(not can_be_compiled(), reason="needs g++ and the headers of OpenSSL")
def test_a_slow_store_is_told_from_the_outside(tmp_path: Path) -> None:
    """Of a store with 40 ms to the first byte: that latency, its rates, and a job that fits not."""
    write(tmp_path / "big", gib=0.25, sample_bytes=64 << 10)
    with open_dataset(str(tmp_path / "big")) as dataset:
        mib_per_sample = dataset.stored_bytes / dataset.sample_count / (1 << 20)
    with (
        slow_store(tmp_path, median_ms=40.0, p99_ms=40.0, mb_per_s=200.0) as store,
        reached(store),
    ):
        common = ("doctor", "--store", "s3://bucket/big", "--seconds", "1.5", "--json")
        modest = run(*common, "--need", "10/s", "--ranks", "4")
        greedy = diagnose_store("s3://bucket/big", StoreNeed(1e6), seconds=0.3)

    found = json.loads(modest.stdout)
    assert 0 == modest.returncode, modest.stderr
    assert not greedy.fits
    assert 40 <= found["first_byte_ms"] < 80
    assert found["first_byte_ms"] <= found["first_byte_p90_ms"]
    rates = {rate["at_once"]: rate for rate in found["rates"]}
    assert all(rate["read_ms"] >= 40 for rate in found["rates"])
    assert rates[4]["mib_per_s"] > 1.5 * rates[1]["mib_per_s"]
    assert pytest.approx(40 * mib_per_sample) == found["need_mib_per_s"]
    # Runs of 2 MiB, as long as the reads that were measured.
    assert (
        pytest.approx(found["need_mib_per_s"] * (1 << 20) / found["need_gets_per_s"], rel=0.1)
        == (found["read_bytes"])
    )
    assert "is too slow" in greedy.verdict


def test_a_real_store_and_files_of_others(s3: S3, tmp_path: Path) -> None:
    """A dataset on a real S3 server, and Parquet files, which have no blocks of ours."""
    url = s3.url("doctor")
    write_dataset(url, small_table(2000), shard_samples=[500] * 4)
    found = run("doctor", "--store", url, "--need", "1/s", "--seconds", "0.5")
    pq.write_table(pa.table({"id": list(range(1000))}), tmp_path / "a.parquet")
    other = diagnose_store(str(tmp_path), StoreNeed(1.0), seconds=0.1)

    assert 0 == found.returncode, found.stderr
    assert "first byte: " in found.stdout
    assert "1 at once: " in found.stdout
    assert "this store is fast enough" in found.stdout
    assert other.fits


def test_columns_that_files_lack_on_request(tmp_path: Path) -> None:
    """The doctor opens what servers are told to serve."""
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [3], "new": [0.5]}), tmp_path / "b.parquet")
    options = SourceOptions(missing_as_null=True)

    found = diagnose_store(str(tmp_path), StoreNeed(1.0), seconds=0.01, source_options=options)

    assert found.fits


def test_what_cannot_be_meant_is_refused() -> None:
    """A server and a store at once, or neither."""
    both = run("doctor", "localhost:1", "ds", "--store", "s3://b/d", "--need", "1/s")
    neither = run("doctor", "--need", "1/s")

    assert (2, 2) == (both.returncode, neither.returncode)
    assert "leave TARGET out" in both.stderr
    assert "or --store URL" in neither.stderr
