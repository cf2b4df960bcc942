"""Accelerate resumes exactly by ``save_state``, and gathers each sample of an evaluation once.

How it could give a wrong sample: a prepared loader deals a rank's batches to all ranks, and reads
ahead; ``skip_first_batches`` after ``load_state`` skips twice (huggingface/accelerate#2016 skipped
in every epoch); the state of a loader that is not registered is in no checkpoint; a checkpoint
without a place loads silently.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator

from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.accelerate import evaluated, remote, trained
from integrations.line import GLOBAL_BATCH, HELD_OUT, STEPS

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = 3


class Run:
    """A model, its optimizer and a loader."""

    def __init__(self, address: str) -> None:
        """Make them."""
        torch.manual_seed(1)
        self.accelerator = Accelerator(cpu=True)
        self.loader = trained(
            self.accelerator, remote(address, "train", seed=3, batch_size=GLOBAL_BATCH)
        )
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self.seen: list[Any] = []

    def train(self, steps: int) -> None:
        """Take so many steps, and note ids and losses."""
        while steps:
            for batch in islice(self.loader, steps):
                x, y, ids = batch["x"], batch["y"], batch["id"]
                assert isinstance(y, torch.Tensor)
                assert isinstance(ids, torch.Tensor)
                loss = torch.nn.functional.mse_loss(self.model(x)[:, 0], y)
                self.optimizer.zero_grad()
                self.accelerator.backward(loss)
                self.optimizer.step()
                self.seen.append((ids.tolist(), loss.item()))
                steps -= 1


@pytest.mark.parametrize("step", [1, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS])
def test_a_run_goes_on_from_save_state(step: int, address: str, tmp_path: Path) -> None:
    """With the same batches and bit for bit the same losses, around an epoch's ends."""
    whole = Run(address)
    whole.train(EPOCHS * STEPS)
    stopped = Run(address)
    stopped.train(step)
    stopped.accelerator.save_state(str(tmp_path))
    stopped.train(2)
    resumed = Run(address)
    resumed.accelerator.load_state(str(tmp_path))
    resumed.train(EPOCHS * STEPS - step)

    assert whole.seen[step:] == resumed.seen
    assert whole.seen[: step + 2] == stopped.seen


def test_skipping_what_the_state_skips_is_refused(address: str) -> None:
    """It would lose as many batches again."""
    run = Run(address)

    with pytest.raises(BadArgumentError, match=r"prepared"):
        next(iter(run.accelerator.skip_first_batches(run.loader, 2)))


def test_preparing_once_more_changes_nothing(address: str, tmp_path: Path) -> None:
    """Neither the loader, nor how many states are saved."""
    run = Run(address)

    assert run.loader is run.accelerator.prepare(run.loader)
    run.train(1)
    run.accelerator.save_state(str(tmp_path))
    assert ["dl_state_dict.bin"] == [path.name for path in tmp_path.glob("dl_state*")]


def test_an_evaluation_gathers_each_sample_once(address: str) -> None:
    """In each of two loops, though the last batch is filled up."""
    accelerator = Accelerator(cpu=True)
    loader = evaluated(accelerator, remote(address, "val", batch_size=16))

    for _ in range(2):
        ids = torch.cat([accelerator.gather_for_metrics(batch["id"]) for batch in loader])
        assert list(range(HELD_OUT)) == sorted(ids.tolist())


def test_a_plain_dataset_that_is_prepared_is_refused(address: str) -> None:
    """As it was."""
    accelerator = Accelerator(cpu=True)
    dataset = RemoteDataset(address, "train", batch_size=GLOBAL_BATCH)
    loader = accelerator.prepare(torch.utils.data.DataLoader(dataset, batch_size=None))

    with pytest.raises(BadArgumentError, match=r"prepared"):
        next(iter(loader))


def test_a_checkpoint_without_a_place_is_refused(address: str, tmp_path: Path) -> None:
    """Training would begin with the first epoch again."""
    run = Run(address)
    Accelerator(cpu=True).save_state(str(tmp_path))

    with pytest.raises(BadArgumentError, match=r"no dl_state_dict\.bin"):
        run.accelerator.load_state(str(tmp_path))
