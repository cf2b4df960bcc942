"""Workers of Ray Train go on from its checkpoints, on any number of workers.

How it could give a wrong sample: a rank that is not Ray's; a loader that reads one batch ahead of
the checkpoint; a checkpoint without a place, which begins with the first epoch; a restart by Ray
itself, whose workers are new processes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.train", exc_type=ImportError)

import ray
import torch
from ray import train
from ray.train.torch import TorchTrainer

from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.ray import RemoteLoader
from integrations import ray_job
from integrations.line import GLOBAL_BATCH, STEPS

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]

KILL = 7


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Ray on this machine, whose workers import what this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join(sys.path))
        patch.setenv("OMP_NUM_THREADS", "1")
        ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
        yield
        ray.shutdown()


def _run(folder: Path, address: str, workers: int, until: int, kill: int | None = None) -> Any:
    told = {"address": address, "folder": str(folder), "until": until, "kill": kill}
    return TorchTrainer(
        ray_job.work,
        train_loop_config=told,
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name="run",
            storage_path=str(folder / "storage"),
            failure_config=train.FailureConfig(max_failures=1),
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
