"""Workers of Ray Train go on from its checkpoints, on any number of workers.

How it could give a wrong sample: a rank that is not Ray's; a loader that reads one batch ahead of
the checkpoint; a checkpoint without a place, which begins with the first epoch; a restart by Ray
itself, whose workers are new processes, and perhaps more or fewer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.train", exc_type=ImportError)

import ray
import torch
from ray import train
from ray.cluster_utils import Cluster
from ray.train.torch import TorchTrainer

from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.ray import RemoteLoader
from integrations import ray_job
from integrations.line import GLOBAL_BATCH, STEPS

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

KILL = 7
_ELASTIC_S = 600.0
_HEAD = {"num_cpus": 4, "include_dashboard": False}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    """Ray on this machine, whose workers import what this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")
        found = Cluster(initialize_head=True, head_node_args=_HEAD, shutdown_at_exit=False)
        ray.init(address=found.address, logging_level="error")
        yield found
        ray.shutdown()
        found.shutdown()


def _run(folder: Path, address: str, workers: int, until: int, kill: int | None = None) -> Any:
    told = {"address": address, "folder": str(folder), "until": until, "kill": kill}
    return TorchTrainer(
        ray_job.work,
        train_loop_config=told,
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name="run",
            storage_path=str(folder / "storage"),
            # Each worker dies once: Ray may see one failure, or two.
            failure_config=train.FailureConfig(max_failures=2),
        ),
    ).fit()


def _seen(folder: Path, workers: int) -> list[tuple[int, list[int]]]:
    """Return steps and global batches in the order in which they came, and forget them."""
    logs = [folder / f"{rank}.jsonl" for rank in range(workers)]
    ranks = [[json.loads(line) for line in log.read_text().splitlines()] for log in logs]
    for log in logs:
        log.unlink()
    steps = sorted({step for rank in ranks for step, _ in rank})
    last = [dict(rank) for rank in ranks]
    # What a killed worker had read after the checkpoint comes once more, the same.
    assert all(last[rank][step] == ids for rank in range(workers) for step, ids in ranks[rank])
    return [(step, [each for rank in last for each in rank[step]]) for step in steps]


def test_a_run_goes_on_with_other_workers(address: str, tmp_path: Path) -> None:
    """Killed in the middle on two workers, restarted by Ray, and then restored on three."""
    _run(tmp_path, address, 2, 12, kill=KILL)
    first = _seen(tmp_path, 2)
    _run(tmp_path, address, 3, STEPS + 5)
    then = _seen(tmp_path, 3)

    assert list(range(12)) == [step for step, _ in first]
    assert list(range(12, STEPS + 5)) == [step for step, _ in then]
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        batches: Iterator[Any] = (batch for _ in range(2) for batch in dataset)
        order = [batch["id"].tolist() for batch in islice(batches, STEPS + 5)]
    assert order == [batch for _, batch in [*first, *then]]


class Nodes:
    """Machines that join and leave while a job trains, each with room for one of its workers."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._nodes = [self._added(), self._added()]
        self._deadline = time.monotonic() + _ELASTIC_S

    def change(self) -> None:
        """Let one join, and then another leave; train for some steps on each number of workers."""
        try:
            self._train_on(2, 4)
            self._nodes.append(self._added())
            self._train_on(3, 4)
            self._cluster.remove_node(self._nodes.pop(0))
            self._train_on(2, 4)
        finally:
            self._until(0)

    def _added(self) -> Any:
        return self._cluster.add_node(num_cpus=1, resources={"seat": 1})

    def _train_on(self, workers: int, steps: int) -> None:
        """Wait until a number of workers have taken a number of steps more."""
        trained = self._folder / "worlds"
        before = len(trained.read_text().split()) if trained.exists() else 0
        self._until(1 << 30)
        while not trained.exists() or trained.read_text().split()[before:].count(str(workers)) < (
            steps
        ):
            assert time.monotonic() < self._deadline, f"{workers} workers do not train"
            time.sleep(0.1)

    def _until(self, step: int) -> None:
        (self._folder / "new").write_text(str(step))
        (self._folder / "new").replace(self._folder / "until")


def test_elastic_workers_train_on_each_sample_once(
    cluster: Cluster, address: str, tmp_path: Path
) -> None:
    """As Ray grows and shrinks the group, a step that was saved has its global batch, once."""
    nodes = Nodes(cluster, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        changed = pool.submit(nodes.change)
        result = TorchTrainer(
            ray_job.work_elastically,
            train_loop_config={"address": address, "folder": str(tmp_path)},
            scaling_config=train.ScalingConfig(
                num_workers=(1, 3),
                resources_per_worker={"CPU": 1, "seat": 1},
                elastic_resize_monitor_interval_s=1.0,
            ),
            run_config=train.RunConfig(
                name="elastic",
                storage_path=str(tmp_path / "storage"),
                failure_config=train.FailureConfig(max_failures=20),
            ),
        ).fit()
        changed.result()
    with result.checkpoint.as_directory() as saved:
        state = torch.load(f"{saved}/state.pt")
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        batches: Iterator[Any] = chain.from_iterable(repeat(dataset))
        order = [batch["id"].tolist() for batch in islice(batches, len(state["trained"]))]

    assert order == state["trained"]
    assert [2, 3, 2] == [workers for workers, _ in groupby(state["worlds"])]


def test_a_loader_that_is_prepared_is_refused() -> None:
    """Ray's wrapper reads one batch ahead of the loop."""
    from ray.train.torch.train_loop_utils import _WrappedDataLoader  # noqa: PLC0415 - private

    loader = RemoteLoader(RemoteDataset("localhost:1", "train", batch_size=4))
    device = torch.device("cpu")

    with pytest.raises(BadArgumentError, match=r"prepared by prepare_data_loader"):
        next(iter(_WrappedDataLoader(loader, device, auto_transfer=False)))


def test_a_checkpoint_without_a_place_is_refused(tmp_path: Path) -> None:
    """Training would begin with the first epoch again."""
    from headrace.integrations import ray as ours  # noqa: PLC0415 - needs Ray

    with pytest.raises(BadArgumentError, match=r"have no 'headrace'"):
        ours._place(train.Checkpoint(tmp_path))
