"""The benchmark measures every stage of every kind of samples, however short it is told to be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.bench import WORKLOADS, Limits, StageRates, decoding_rate
from headrace.errors import DatasetExistsError
from headrace.storage import open_dataset
from support.command import run


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_samples_are_as_large_as_said(tmp_path: Path, workload: object) -> None:
    """32 batches at least, and raw bytes a sample within a tenth of what is stated."""
    assert workload in WORKLOADS
    known = WORKLOADS[WORKLOADS.index(workload)]
    if known.name == "images":
        known = type(known)("images", 2, known.sample_bytes, known.make)  # 512 MiB otherwise
    count = known.write(str(tmp_path), raw_bytes=1)

    with open_dataset(str(tmp_path)) as dataset:
        raw = dataset.read_block(0)

    assert 32 * known.batch_size == count == dataset.sample_count
    assert raw.nbytes / raw.num_rows == pytest.approx(known.sample_bytes, rel=0.1)


def test_a_used_folder_is_left_as_it_is(tmp_path: Path) -> None:
    """A second run is refused before it writes, with advice that the command can follow."""
    tokens = next(known for known in WORKLOADS if known.name == "tokens")
    tokens.write(str(tmp_path), raw_bytes=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}

    with pytest.raises(DatasetExistsError, match="give --url another folder"):
        tokens.write(str(tmp_path), raw_bytes=1)

    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.arrow")}


def test_a_run_names_stages_limits_and_the_bottleneck() -> None:
    """The command as a process: tokens, in numbers that are above zero."""
    found = run(
        *("bench", "--only", "tokens", "--mib", "1", "--seconds", "0.1"),
        "--json",
        timeout_s=240,
    )
    report = json.loads(found.stdout)

    assert 0 == found.returncode, found.stderr
    assert set(Limits.__slots__) == set(report["limits"])
    assert ["tokens"] == [one["workload"] for one in report["workloads"]]
    assert report["images_per_processor_second"] is None
    for one in report["workloads"]:
        assert one["bottleneck"] in ("wire", "server", "client", "loop")
        rates = [one[stage] for stage in ("store", "decode", "wire", "server", "client", "loop")]
        assert 0 < one["bottleneck_share"] <= 1
        assert all(rate > 0 for rate in rates)
        assert one["first_batch_ms"] > 0


def test_a_processor_decodes_images() -> None:
    """The rate of made-up JPEG is above zero, and small ones take less time."""
    assert decoding_rate(side=32, width=64, height=48) > decoding_rate(
        side=224, width=500, height=375
    )


def test_a_limit_is_the_best_that_was_seen() -> None:
    """Each rate by itself, whichever measurement it comes from."""
    found = Limits(memcpy=1.0, socket=5.0, file=2.0).or_better(Limits(3.0, 4.0, 2.0))

    assert Limits(memcpy=3.0, socket=5.0, file=2.0) == found


def test_the_bottleneck_is_what_costs_most() -> None:
    """Each stage's cost is what it adds to the stages before it."""
    rates = StageRates(
        workload="rows",
        batch_bytes=1,
        store=1.0,
        decode=1.0,
        gather=1.0,
        wire=1000.0,
        server=900.0,
        client=300.0,
        loop=290.0,
        gpu=0.0,
        first_batch_ms=1.0,
    )

    assert "client" == rates.bottleneck
    # 1/300 - 1/900 of 1/290
    assert rates.bottleneck_share == pytest.approx(0.6444, abs=1e-3)
