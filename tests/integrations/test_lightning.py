"""Lightning resumes exactly by its own checkpoints, and evaluates each sample once.

How it could give a wrong sample: its loader's state is not loaded from a checkpoint of an epoch's
end (so every later epoch repeats the first, as in huggingface/accelerate#2016), or counts what was
read ahead (mosaicml/streaming#880); an epoch that a limit leaves early, or the sanity check, takes
samples from the next loop; a validation inside an epoch moves the training; all ranks read the same
samples, since a script does not know its rank yet. How it could hang: ranks with different numbers
of batches (Lightning-AI/litData#694).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from headrace.client import Batch, RemoteDataset, Sharding
from headrace.errors import BadArgumentError
from headrace.integrations.lightning import RemoteData, remote
from integrations.line import GLOBAL_BATCH, HELD_OUT, STEPS

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = 4


class Killed(Exception):  # noqa: N818 - stands for a signal
    """The run ends here."""


class Line(lightning.LightningModule):
    """A model that remembers what it saw."""

    def __init__(self, kill_before: int | None = None) -> None:
        """Make it."""
        super().__init__()
        torch.manual_seed(1)
        self.line = torch.nn.Linear(8, 1)
        self.kill_before = kill_before
        self.seen: list[list[int]] = []
        self.losses: list[float] = []
        self.counts: list[int] = []

    def training_step(self, batch: Batch) -> torch.Tensor:
        """Note the batch."""
        if len(self.seen) == self.kill_before:
            raise Killed
        x, y, ids = batch["x"], batch["y"], batch["id"]
        assert isinstance(x, torch.Tensor)
        assert isinstance(y, torch.Tensor)
        assert isinstance(ids, torch.Tensor)
        loss = torch.nn.functional.mse_loss(self.line(x)[:, 0], y)
        self.seen.append(ids.tolist())
        self.losses.append(loss.item())
        return loss

    def on_validation_epoch_start(self) -> None:
        """Begin to count."""
        self.counts.append(0)

    def validation_step(self, batch: Batch) -> None:
        """Count samples."""
        self.counts[-1] += int((~batch.is_pad).sum())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one with a state."""
        return torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)


def _module(address: str, *, val: bool = False, workers: int = 0) -> RemoteData:
    sharding = Sharding(global_batch_size=GLOBAL_BATCH)
    train = remote(address, "train", seed=3, sharding=sharding)
    held_out = remote(address, "val", batch_size=16)
    return RemoteData(train, held_out if val else None, workers=workers)


def _dataset(address: str) -> RemoteDataset:
    return RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH)


def _fit(data: Any, *, kill: int | None = None, found: Path | None = None, **given: Any) -> Line:
    line = Line(kill)
    callbacks: list[Callback] = given.pop("callbacks", [])
    trainer = lightning.Trainer(
        **{"max_epochs": EPOCHS, **given},
        accelerator="cpu",
        devices=1,
        logger=False,
        callbacks=callbacks,
        enable_checkpointing=bool(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    try:
        if isinstance(data, RemoteData):
            trainer.fit(line, datamodule=data, ckpt_path=found)
        else:
            trainer.fit(line, data, ckpt_path=found)
    except Killed:
        assert kill is not None
    return line


def _newest(folder: Path) -> tuple[Path, int]:
    """A checkpoint, and the number of batches before it."""
    steps = {int(re.findall(r"\d+", path.name)[0]): path for path in folder.glob("*.ckpt")}
    saved = torch.load(steps[max(steps)], weights_only=False)
    return steps[max(steps)], saved["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"][
        "ready"
    ]


Every: dict[str, dict[str, Any]] = {
    "steps": {"every_n_train_steps": 3},
    "epochs": {"every_n_epochs": 1, "save_on_train_epoch_end": True},
    "validations": {"every_n_epochs": 1},
}
Runs: dict[str, dict[str, Any]] = {
    "whole epochs": {},
    "short epochs": {"limit_train_batches": 7},
    "validations inside": {"val_check_interval": 4},
    "accumulated": {"accumulate_grad_batches": 3},
    "steps": {"max_steps": 33},
}


def _resumed(
    make: Callable[[], Any], folder: Path, every: str, kill: int, **run: Any
) -> tuple[list[Any], list[Any]]:
    """What follows a checkpoint in a run that was not stopped, and in one that goes on from it."""
    whole = _fit(make(), **run)
    saving = ModelCheckpoint(folder, filename="{step}", save_top_k=-1, **Every[every])
    killed = _fit(make(), kill=kill, callbacks=[saving], **run)
    found, done = _newest(folder)
    assert whole.losses[: len(killed.losses)] == killed.losses
    resumed = _fit(make(), found=found, **run)
    return (
        [whole.seen[done:], whole.losses[done:]],
        [resumed.seen, resumed.losses],
    )


@pytest.mark.parametrize(
    ("run", "every", "kill"),
    [
        ("whole epochs", "steps", 11),  # in the first step of the second epoch
        ("whole epochs", "steps", 19),  # in its last
        ("whole epochs", "epochs", 20),
        ("short epochs", "epochs", 16),
        ("short epochs", "steps", 18),
        ("accumulated", "steps", 17),
        ("steps", "epochs", 20),
    ],
)
def test_a_killed_run_goes_on_from_lightnings_checkpoint(
    run: str, every: str, kill: int, address: str, tmp_path: Path
) -> None:
    """With the same batches and bit for bit the same losses as a run that was not killed."""
    expected, found = _resumed(lambda: _module(address), tmp_path, every, kill, **Runs[run])

    assert expected == found


@pytest.mark.long
@pytest.mark.parametrize("kill", range(9, 24))
@pytest.mark.parametrize("every", ["steps", "epochs"])
@pytest.mark.parametrize("run", Runs)
def test_wherever_it_is_killed(
    run: str, every: str, kill: int, address: str, tmp_path: Path
) -> None:
    """In each step of an epoch and around its ends."""
    if every == "epochs" and kill < STEPS + 1:
        pytest.skip("nothing was saved yet")
    expected, found = _resumed(lambda: _module(address), tmp_path, every, kill, **Runs[run])

    assert expected == found


@pytest.mark.parametrize("every", ["steps", "epochs"])
def test_a_dataset_without_a_module_does_too(every: str, address: str, tmp_path: Path) -> None:
    """Also from an epoch's end, whose checkpoints have a loader's state that is not loaded."""
    expected, found = _resumed(lambda: _dataset(address), tmp_path, every, 20)

    assert expected == found


@pytest.mark.long
def test_workers_may_receive(address: str, tmp_path: Path) -> None:
    """What they have read ahead is not in the checkpoint."""
    expected, found = _resumed(lambda: _module(address, workers=1), tmp_path, "steps", 13)

    assert expected == found


def test_validations_see_each_sample_once(address: str, tmp_path: Path) -> None:
    """The sanity check takes nothing, and validations inside an epoch do not move the training."""
    run = Runs["validations inside"]
    whole = _fit(_module(address))
    between = _fit(_module(address, val=True), **run)
    expected, found = _resumed(
        lambda: _module(address, val=True), tmp_path, "validations", 14, **run
    )

    assert whole.seen == between.seen
    assert 2 * 16 == between.counts[0]
    assert {HELD_OUT} == set(between.counts[1:])
    assert expected == found


def test_a_fit_after_a_validation_begins_at_the_beginning(address: str) -> None:
    """And so does another fit with another trainer."""
    data = _module(address, val=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", devices=1, enable_checkpointing=False, **quiet
    )
    line = Line()

    trainer.validate(line, datamodule=data, verbose=False)
    trainer.fit(line, datamodule=data)

    assert [HELD_OUT, 2 * 16, *[HELD_OUT] * EPOCHS] == line.counts
    assert line.seen == _fit(data).seen


def test_a_checkpoint_without_a_place_is_refused(address: str, tmp_path: Path) -> None:
    """Training would begin with the first epoch again."""
    saving = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **Every["epochs"])
    _fit(_dataset(address), callbacks=[saving])
    found, _ = _newest(tmp_path)

    with pytest.raises(BadArgumentError, match=r"after step 40 and does not say where the data"):
        _fit(_module(address), found=found, max_epochs=EPOCHS + 1)


def test_a_dataset_in_place_of_a_source_is_refused(address: str) -> None:
    """It would have to know its rank before Lightning does."""
    with pytest.raises(BadArgumentError, match=r"such as remote\(target, name"):
        _fit(RemoteData(_dataset(address)))  # type: ignore[arg-type] # the mistake
