"""Databricks' DataLoader over headrace resumes exactly, and times its batches for MLflow.

How it could give a wrong sample: worker processes by default, 48 of them, each of which reads all;
a state of the worker that read last; a state taken at an epoch's beginning, which says nothing;
another number of ranks that is refused, or takes another rank's place.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("databricks.air.data", exc_type=ImportError)

import mlflow
from databricks.air.data import Checkpointable, DataLoader

from headrace.client import RemoteDataset, Sharding
from headrace.errors import BadArgumentError
from headrace.integrations.databricks import RemoteLoader, evaluated, remote, trained
from integrations.line import GLOBAL_BATCH, HELD_OUT, STEPS

pytestmark = pytest.mark.filterwarnings("ignore")


def _loader(address: str, rank: int = 0, ranks: int = 1) -> RemoteLoader:
    sharding = Sharding(global_batch_size=GLOBAL_BATCH)
    dataset = RemoteDataset(
        address, "train", seed=3, rank=rank, world_size=ranks, sharding=sharding
    )
    return RemoteLoader(dataset)


def _ids(batch: Any) -> Any:
    return batch["id"].tolist()


def _order(address: str, steps: int) -> list[Any]:
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        return [_ids(batch) for batch in islice((b for _ in range(9) for b in dataset), steps)]


def test_it_is_what_databricks_calls_checkpointable() -> None:
    """And so is the dataset, so that a wrapper may delegate to either."""
    dataset = RemoteDataset("localhost:1", "train", batch_size=4)

    assert isinstance(dataset, Checkpointable)
    assert isinstance(RemoteLoader(dataset), Checkpointable)
    assert isinstance(RemoteLoader(dataset), DataLoader)


def test_it_goes_on_with_other_ranks(address: str) -> None:
    """4, 2 and 3, which change in the middle of epochs 1 and 3."""
    seen: list[Any] = []
    state: dict[str, Any] | None = None
    for ranks, stop in ((4, 13), (2, 34), (3, 4 * STEPS)):
        loaders = [_loader(address, rank, ranks) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        while len(seen) < stop:
            steps = zip(*loaders, strict=True)
            seen += [
                [each for batch in step for each in _ids(batch)]
                for step in islice(steps, stop - len(seen))
            ]
        state = loaders[-1].state_dict()
        assert all(loader.state_dict() == state for loader in loaders)

    assert _order(address, 4 * STEPS) == seen


@pytest.mark.parametrize("step", [0, 1, STEPS - 1, STEPS, STEPS + 1])
def test_a_state_is_right_before_an_epochs_first_batch(step: int, address: str) -> None:
    """Where Databricks' loader has forgotten the last epoch."""
    loader = _loader(address)
    for _ in range(step // STEPS):
        assert STEPS == sum(1 for _ in loader)
    batches = iter(loader)
    for _ in range(step % STEPS):
        next(batches)
    other = _loader(address)
    other.load_state_dict(loader.state_dict())

    assert _order(address, step + 1)[step] == _ids(next(iter(other)))


def test_an_evaluation_has_each_sample_once(address: str) -> None:
    """In each of two loops."""
    loader = evaluated(remote(address, "val", batch_size=16))

    for _ in range(2):
        ids = [each for batch in loader for each in batch["id"][~batch.is_pad].tolist()]
        assert list(range(HELD_OUT)) == sorted(ids)


def test_times_of_batches_are_in_the_run(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Databricks' own keys, for this rank."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        assert STEPS == sum(1 for _ in trained(remote(address, "train", batch_size=GLOBAL_BATCH)))

    found = mlflow.get_run(run.info.run_id).data.metrics
    assert {
        f"dataloader/{name}{kind}/rank_0"
        for name in ("fetch_seconds", "between_next_seconds")
        for kind in ("", "_variance")
    } == set(found)


def test_a_state_of_databricks_own_loader_is_refused() -> None:
    """It counts files of another dataset."""
    state = {"version": 1, "world_size": 1, "num_workers": 0, "per_worker": {}}

    with pytest.raises(BadArgumentError, match=r"is one of databricks\.air\.data\.DataLoader"):
        RemoteLoader(RemoteDataset("localhost:1", "train", batch_size=4)).load_state_dict(state)
