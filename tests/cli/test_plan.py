"""`headrace plan`: what it says of a job follows from what was measured, and enough is enough."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from headrace.bench import ServingCost
from headrace.cli.plan import command
from headrace.cli.stored.job_plan import Job, JobPlan, plan_job
from headrace.errors import BadArgumentError
from headrace.storage import OpenDataset, open_dataset
from support.datasets import small_table, write_dataset, write_rows

_COST = ServingCost(
    batch_bytes=1e6,
    warm_batch_s=1e-3,
    cold_byte_s=1e-9,
    cold_bytes_per_s=4e8,
    first_batch_ms=100,
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 4,000 samples."""
    folder = str(tmp_path_factory.mktemp("plan") / "rows")
    write_rows(folder, sample_count=4000, width=4)
    return folder


@pytest.fixture(scope="module")
def dataset(url: str) -> OpenDataset:
    """The dataset, opened."""
    return open_dataset(url)


def _plan(
    job: Job, dataset: OpenDataset, cost: ServingCost = _COST, *, memory_bytes: int = 1 << 10
) -> JobPlan:
    return plan_job(job, cost, dataset, memory_bytes=memory_bytes, reads_per_gib=500)


@given(
    ranks=st.integers(1, 1024),
    step_ms=st.floats(50, 5000),
    cores=st.integers(2, 64),
    gbit=st.floats(5, 200),
)
def test_one_replica_may_be_away(
    dataset: OpenDataset, ranks: int, step_ms: float, cores: int, gbit: float
) -> None:
    """The others have enough of everything but the store, and more ranks never need fewer."""
    job = Job(ranks=ranks, step_ms=step_ms, cores=cores, network_gbit=gbit)
    found = _plan(job, dataset)
    more = _plan(dataclasses.replace(job, ranks=2 * ranks), dataset)

    assert all(used <= 1 for name, used in found.use.items() if name != "store")
    assert 2 <= found.replicas <= more.replicas
    assert found.bottleneck == max(found.use, key=lambda name: found.use[name])


def test_a_job_that_no_number_of_replicas_feeds_is_refused(dataset: OpenDataset) -> None:
    """The message has what is needed and what a replica has."""
    job = Job(ranks=1 << 20, step_ms=1, cores=1, network_gbit=1, streams=1)

    with pytest.raises(BadArgumentError, match=r"1 processors and 1 Gbit/s do not have; give larg"):
        _plan(job, dataset)


def test_a_slow_store_is_named_and_not_answered_by_replicas(dataset: OpenDataset) -> None:
    """Replicas that read the same data do not make a store faster."""
    slow = dataclasses.replace(_COST, cold_bytes_per_s=1.0)

    found = _plan(Job(ranks=4, step_ms=100), dataset, slow)

    assert ("store", 2) == (found.bottleneck, found.replicas)


def test_memory_is_that_of_the_formula(dataset: OpenDataset) -> None:
    """The formula of docs/limits.md, for the streams of a replica when one is away."""
    found = _plan(Job(ranks=64, step_ms=100), dataset, memory_bytes=2 << 30)
    streams = -(-64 // (found.replicas - 1))
    mib = 1 << 20
    formula = 387 * mib + found.cache_bytes + streams * (4e6 + 6 * mib + 4 * mib)

    assert (found.is_cached, found.stored_bytes_per_s) == (True, 0)
    assert formula * 1.1 == pytest.approx(found.memory_bytes, rel=0.01)


def test_the_command_measures_and_prints(url: str) -> None:
    """Both forms agree in what they name, and an epoch lasts as long as its steps."""
    arguments = [url, "--ranks=4", "--step-ms=100", "--batch-size=100", "--seconds=0.2"]
    shown = CliRunner().invoke(command, arguments)
    printed = CliRunner().invoke(command, [*arguments, "--json"])
    found = json.loads(printed.stdout)

    assert (0, 0) == (shown.exit_code, printed.exit_code)
    assert "replicas" in shown.stdout
    assert found["epoch_s"] == pytest.approx(1.0)
    assert found["cost"]["batch_bytes"] >= 100 * 4 * 4
    assert found["cost"]["warm_batch_s"] >= 0


def test_columns_that_some_files_lack_are_null_for_its_server_too(tmp_path: Path) -> None:
    """Without the option neither opens the files, and with it both do."""
    for name, columns in (("a", {"x": [1] * 64}), ("b", {"x": [2] * 64, "y": [3] * 64})):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    arguments = [str(tmp_path), "--ranks=1", "--step-ms=100", "--seconds=0.1", "--json"]

    refused = CliRunner().invoke(command, arguments)
    taken = CliRunner().invoke(command, [*arguments, "--missing-as-null"])

    assert 0 != refused.exit_code
    assert 0 == taken.exit_code, taken.output
    assert 0 < json.loads(taken.stdout)["replicas"]


def test_a_dataset_without_a_batch_is_refused(tmp_path: Path) -> None:
    """Nothing is measured, and the message has both sizes."""
    write_dataset(str(tmp_path / "few"), small_table(10), shard_samples=[10])

    done = CliRunner().invoke(command, [str(tmp_path / "few"), "--ranks=1", "--step-ms=10"])

    assert 2 == done.exit_code
    assert "10 samples, less than a batch of a rank (32)" in done.output
