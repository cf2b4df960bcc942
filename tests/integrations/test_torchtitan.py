"""torchtitan's checkpoints keep the place, and steps have the same samples for every degree.

How it could give a wrong sample: a state for each rank, so that another data-parallel degree finds
none, or another's; microbatches of one step that are counted as taken when the first of them is; a
rest of fewer microbatches on some ranks; a checkpoint of another loader, or none, that loads
without a word and begins with the first epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchtitan", exc_type=ImportError)

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpoint import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import OptimizersContainer
from torchtitan.config import JobConfig

from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.torchtitan import RemoteLoader, remote, trained
from integrations.line import GLOBAL_BATCH, STEPS

pytestmark = pytest.mark.filterwarnings("ignore")

LOCAL = {1: 48, 2: 12, 3: 16, 4: 3}
"""Samples of a microbatch, for each data-parallel degree."""


@pytest.fixture(autouse=True, scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its checkpoints need a process group."""
    meeting = (tmp_path_factory.mktemp("group") / "ranks").as_uri()
    dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _config(degree: int, **training: Any) -> Any:
    config = JobConfig()
    config.training.local_batch_size = LOCAL[degree]
    config.training.global_batch_size = GLOBAL_BATCH
    for name, value in training.items():
        setattr(config.training, name, value)
    config.checkpoint.enable = True
    config.checkpoint.interval = 1
    return config


def _loader(address: str, rank: int = 0, degree: int = 1, **given: Any) -> RemoteLoader:
    build = trained(remote(address, "train", seed=3, **given), inputs="id", labels="id")
    return build(dp_rank=rank, dp_world_size=degree, tokenizer=None, job_config=_config(degree))


def _checkpoints(loader: Any, folder: Path, mode: str = "disabled") -> Any:
    model = torch.nn.Linear(8, 1)
    optimizers = OptimizersContainer([model], torch.optim.AdamW, {"lr": 0.01})
    config = _config(1)
    config.checkpoint.async_mode = mode
    schedulers = build_lr_schedulers(optimizers, config.lr_scheduler, 100)
    return CheckpointManager(
        loader, [model], optimizers, schedulers, {}, config.checkpoint, None, str(folder)
    )


def _steps(loader: RemoteLoader, degree: int) -> Iterator[list[int]]:
    """Yield what one rank gets in each step."""
    microbatches = iter(loader)
    count = GLOBAL_BATCH // degree // LOCAL[degree]
    while True:
        found = list(islice(microbatches, count))
        for inputs, labels in found:
            assert torch.equal(inputs["input"], labels)
            assert labels.dtype == torch.int64
            assert len(labels) == LOCAL[degree]
        yield [each for _, labels in found for each in labels.tolist()]


def _order(address: str, steps: int) -> list[list[int]]:
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        batches = (batch for _ in range(steps) for batch in dataset)
        return [batch["id"].tolist() for batch in islice(batches, steps)]


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_checkpoints_go_on_with_another_degree(mode: str, address: str, tmp_path: Path) -> None:
    """4, 2 and 3 ranks, which change in the middle of epochs 1 and 3 and cut differently."""
    seen: list[list[int]] = []
    for degree, stop in ((4, 13), (2, 34), (3, 4 * STEPS)):
        loaders = [_loader(address, rank, degree) for rank in range(degree)]
        managers = [_checkpoints(loader, tmp_path, mode) for loader in loaders]
        assert [bool(seen)] * degree == [each.load() for each in managers]
        ranks = [_steps(loader, degree) for loader in loaders]
        while len(seen) < stop:
            seen.append([each for rank in ranks for each in next(rank)])
        managers[0].save(len(seen))
        managers[0]._async_wait()
        assert len({loader.state_dict()["place"] for loader in loaders}) == 1
        for loader in loaders:
            loader.close()

    assert _order(address, 4 * STEPS) == seen


@pytest.mark.parametrize("step", [0, 1, STEPS - 1, STEPS, STEPS + 1])
def test_a_step_that_was_begun_is_taken_whole(step: int, address: str) -> None:
    """A checkpoint has no accumulated gradients; around an epoch's ends, and by another loop."""
    loader = _loader(address, 1, 4)
    steps = _steps(loader, 4)
    for _ in range(step):
        next(steps)
    microbatches = iter(loader)
    next(microbatches)
    next(microbatches)
    other = _loader(address, 1, 4)
    other.load_state_dict(loader.state_dict())

    expected = _order(address, step + 2)[step:]
    for each in (other, loader):
        assert [batch[12:24] for batch in expected] == list(islice(_steps(each, 4), 2))


def test_a_checkpoint_of_another_loader_is_refused(address: str, tmp_path: Path) -> None:
    """Training would begin with the first epoch again."""
    rows = [({"input": number}, number) for number in range(8)]
    _checkpoints(ParallelAwareDataloader(rows, 0, 1), tmp_path).save(1)

    with pytest.raises(
        CheckpointException, match=r"Missing key in checkpoint state_dict: dataloader\.place"
    ):
        _checkpoints(_loader(address), tmp_path).load()
    with pytest.raises(BadArgumentError, match=r"'world_size'\], and no 'place'"):
        _loader(address).load_state_dict({"world_size": 1})


def test_a_loader_ends_when_its_dataset_does(address: str) -> None:
    """After the epochs asked for, and at once when it is read again."""
    loader = _loader(address, epochs=2)

    assert 2 * STEPS == sum(1 for _ in loader)
    assert not list(loader)


@pytest.mark.parametrize("given", [{"batch_size": 4}, {"sharding": None, "batch_size": 4}])
def test_a_source_with_sizes_is_refused(given: dict[str, Any]) -> None:
    """They would be others than torchtitan counts with."""
    with pytest.raises(BadArgumentError, match=r"the source has batch_size"):
        trained(remote("localhost:1", "train", **given))


def test_sizes_that_do_not_fit_are_refused(address: str) -> None:
    """Ranks would get different numbers of microbatches."""
    build = trained(remote(address, "train"), inputs="id", labels="id")

    with pytest.raises(BadArgumentError, match=r"expected a multiple of 60"):
        build(dp_rank=0, dp_world_size=4, job_config=_config(4, local_batch_size=15))
    with pytest.raises(BadArgumentError, match=r"end='uneven'"):
        _loader(address, end="uneven")


def test_without_a_global_size_a_step_has_a_microbatch_of_each_rank(address: str) -> None:
    """As in torchtitan."""
    build = trained(remote(address, "train", seed=3), inputs="id", labels="id")
    config = _config(1, local_batch_size=12, global_batch_size=-1)
    loaders = [build(dp_rank=rank, dp_world_size=4, job_config=config) for rank in range(4)]
    steps = islice(zip(*loaders, strict=True), 2)

    found = [[each for _, labels in step for each in labels.tolist()] for step in steps]

    assert _order(address, 2) == found
