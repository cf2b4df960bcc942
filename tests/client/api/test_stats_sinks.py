"""Statistics go to what draws a run, by its name, and say first which rank waits the most.

How it could do harm: a rank that waits for another one in the middle of training, a tool that is
imported by those who do not ask for it, as many points as ranks, a step of W&B's for each call.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from torch import distributed as dist

from headrace.client import ClientStats, StatsLog
from headrace.client.api import worst_rank
from headrace.client.api.stats_reporter import Reporter
from headrace.client.api.stats_sinks import sink_named
from headrace.client.api.worst_rank import Worst, WorstRank
from headrace.client.feeds.blame import HOPS, Culprit
from headrace.errors import ConfigurationError
from headrace.v1 import shard_service_pb2 as pb
from support.environments import on_top, run_tests
from support.waiting import until

RANKS = 3
JOB = """
import sys
from torch import distributed as dist
from headrace.client.api.worst_rank import Worst

dist.init_process_group("gloo")
worst = Worst("train")
worst.numbers(dist.get_rank() / 10, None)
dist.barrier()
found = worst.numbers(dist.get_rank() / 10, None)
expected = {
    "waited_share_worst_rank": 0.1,
    "worst_rank": 1,
    "worst_rank_hop": 6,
    "worst_rank_step": -1,
}
assert found == ({} if dist.get_rank() else expected), found
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def store() -> Any:
    """What a job's ranks share."""
    return dist.HashStore()  # type: ignore[attr-defined] # it is there


def test_the_first_rank_learns_the_worst(store: Any) -> None:
    """Once each has said how long it waited, and without waiting for those that have not."""
    first, second, third = (WorstRank(store, rank, RANKS, "train") for rank in range(RANKS))

    slow = Culprit("decode", 0.75, rank=1, step=812, step_s=1.5)

    assert first.worst(0.5, None) is None
    assert second.worst(0.75, slow) is None
    assert first.worst(0.5, None) is None
    assert third.worst(0.25, None) is None
    assert (0.75, 1, HOPS.index("decode"), 812) == first.worst(0.5, None)
    assert second.worst(0.125, slow) is None
    assert (0.5, 0, HOPS.index("trainer"), -1) == first.worst(0.5, None)
    assert WorstRank(store, 0, RANKS, "val").worst(1.0, None) is None


@pytest.mark.long
def test_ranks_of_a_job_find_one_another(tmp_path: Path) -> None:
    """As torchrun starts them."""
    (tmp_path / "job.py").write_text(JOB)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launch, tmp_path / "job.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]


def test_a_store_that_fails_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and not asked again."""

    def fail(name: str) -> None:
        raise RuntimeError(f"the store of {name} is away")

    monkeypatch.setattr(worst_rank.WorstRank, "of_job", fail)
    worst = Worst("train")

    assert [{}, {}] == [worst.numbers(0.5, None), worst.numbers(0.5, None)]
    assert ["which rank waits the most is not logged: the store of train is away"] == [
        record.message for record in caplog.records
    ]


def _logged(name: str, rank: int = 0) -> None:
    """Log twice, after steps 1 and 2, half of whose time the loop waited."""
    now = iter([0.0, 2.0, 4.0])
    waited = iter([0.0, 0.0, 1.0, 2.0])
    options = StatsLog(name, every_steps=1, every_s=None)  # type: ignore[arg-type] # one of them
    reporter = Reporter(options, rank=rank, now=lambda: next(now))
    for step in range(3):
        reporter.note(pb.BatchHeader(step=step), lambda: ClientStats(waited_s=next(waited)))


def test_opentelemetry_gets_gauges() -> None:
    """Of the program's own meter provider, from the first rank alone."""
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    _logged("opentelemetry", rank=1)
    assert reader.get_metrics_data() is None
    _logged("opentelemetry")

    found: Any = reader.get_metrics_data()
    ((scope,),) = [each.scope_metrics for each in found.resource_metrics]
    values = {each.name: each.data.data_points[0].value for each in scope.metrics}
    assert values["headrace/waited_share"] == 0.5
    assert values["headrace/step"] == 2


def test_mlflow_gets_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By step, in the active run."""
    mlflow: Any = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        _logged("mlflow")
        mlflow.flush_async_logging()

    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "headrace/waited_share")
    assert {(1, 0.5), (2, 0.5)} <= {(each.step, each.value) for each in history}


def test_tensorboard_gets_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where TensorBoard looks, below ``runs``."""
    loading: Any = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    _logged("tensorboard")

    (folder,) = (tmp_path / "runs").iterdir()
    events = loading.EventAccumulator(str(folder)).Reload()
    found = {(each.step, each.value) for each in events.Scalars("headrace/waited_share")}
    assert {(1, 0.5), (2, 0.5)} <= found


def test_a_loop_may_change_its_folder_under_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer's thread opens its file again for each write."""
    pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.chdir(tmp_path)
    log = sink_named("tensorboard")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (written,) = (tmp_path / "runs").rglob("events.*")
    before = written.stat().st_size

    log({"headrace/waited_share": 0.5}, 1)

    assert until(lambda: written.stat().st_size > before)


def test_wandb_gets_numbers_without_a_step(tmp_path: Path) -> None:
    """They go with the next call of the user's."""
    wandb: Any = pytest.importorskip("wandb")
    with wandb.init(mode="offline", dir=tmp_path) as run:
        before = run.step
        _logged("wandb")
        assert before == run.step
        run.log({"loss": 1.0})
        assert 0.5 == run.summary["headrace/waited_share"]


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_tools_that_are_not_installed_here_get_their_numbers(tmp_path: Path) -> None:
    """In an environment of their own, where no test is skipped."""
    python = on_top(tmp_path / "env", ["mlflow-skinny", "tensorboard", "wandb"])

    run_tests(python, __file__, tmp_path / "t", "-m", "not long")


def test_a_tool_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the dataset is told, not after thirty seconds."""
    monkeypatch.setitem(sys.modules, "wandb", None)

    with pytest.raises(ConfigurationError, match=r"log='wandb' needs .*: pip install wandb"):
        sink_named("wandb")
