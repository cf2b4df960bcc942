"""Trainer resumes exactly by its own checkpoints, and evaluates each sample once.

How it could give a wrong sample: a loader that Accelerate prepares deals one rank's batches to all
ranks and reads ahead; after a resume, Trainer drops as many batches as came before, on top of the
dataset's own place, and a shuffle starts again in every epoch but the first (modelscope/ms-swift
#10050, huggingface/accelerate#2016); a checkpoint without a place begins with epoch 0; an
evaluation inside an epoch moves the training, or counts the repeats that fill up its last batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, TrainerCallback, TrainingArguments

from headrace.client import RemoteDataset, Sharding
from headrace.errors import BadArgumentError
from headrace.integrations.transformers import RemoteTrainer, remote
from integrations.line import GLOBAL_BATCH, HELD_OUT, STEPS

pytestmark = pytest.mark.filterwarnings("ignore")

EPOCHS = 4


class Killed(Exception):  # noqa: N818 - stands for a signal
    """The run ends here."""


class Line(nn.Module):
    """A model that remembers what it saw."""

    def __init__(self, kill_before: int | None = None) -> None:
        """Make it."""
        super().__init__()
        torch.manual_seed(1)
        self.line = nn.Linear(8, 1)
        self.kill_before = kill_before
        self.seen: list[list[int]] = []
        self.losses: list[float] = []
        self.counts: list[int] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:  # noqa: A002 - a column
        """Return the loss, and note what was trained on."""
        prediction = self.line(x)[:, 0]
        loss = ((prediction - y) ** 2).mean()
        if self.training:
            if len(self.seen) == self.kill_before:
                raise Killed
            self.seen.append(id.tolist())
            self.losses.append(loss.item())
        return {"loss": loss, "prediction": prediction}


class StopEpochs(TrainerCallback):
    """Ends each epoch after seven steps."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count."""
        del args, kwargs
        control.should_epoch_stop = state.global_step % 7 == 0


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Trainer says little."""
    transformers.logging.set_verbosity_error()


def _validation(address: str, **given: Any) -> RemoteDataset:
    options = {"batch_size": 16, "shuffle": False, "end": "pad", "epochs": "same", **given}
    return RemoteDataset(address, "val", **options)


def _trainer(
    address: str,
    folder: Path,
    line: Line,
    *,
    evaluated: RemoteDataset | None = None,
    train: Any = None,
    callbacks: Any = None,
    **given: Any,
) -> Any:
    sharding = Sharding(global_batch_size=GLOBAL_BATCH)
    settings = TrainingArguments(
        output_dir=str(folder),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        per_device_train_batch_size=GLOBAL_BATCH,
        per_device_eval_batch_size=16,
        label_names=["y"],
        logging_strategy="no",
        **{"num_train_epochs": EPOCHS, "save_strategy": "no", **given},
    )

    def count(found: EvalPrediction) -> dict[str, float]:
        line.counts.append(len(found.predictions))
        return {}

    return RemoteTrainer(
        line,
        settings,
        train_dataset=train or remote(address, "train", seed=3, sharding=sharding),
        eval_dataset=evaluated or remote(address, "val"),
        compute_metrics=count,
        callbacks=callbacks,
    )


def _run(
    address: str, folder: Path, *, kill: int | None = None, found: Path | None = None, **given: Any
) -> Line:
    line = Line(kill)
    try:
        _trainer(address, folder, line, **given).train(
            resume_from_checkpoint=None if found is None else str(found)
        )
    except Killed:
        assert kill is not None
    return line


Every: dict[str, dict[str, Any]] = {
    "steps": {"save_strategy": "steps", "save_steps": 3},
    "epochs": {"save_strategy": "epoch"},
}
Runs: dict[str, dict[str, Any]] = {
    "whole epochs": {},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 4},
    "accumulated": {"gradient_accumulation_steps": 3},
    "steps": {"max_steps": 33},
}


def _resumed(
    address: str, folder: Path, every: str, kill: int, **run: Any
) -> tuple[list[Any], list[Any]]:
    """What follows a checkpoint in a run that was not stopped, and in one that goes on from it."""
    whole = _run(address, folder / "whole", **run)
    saved = folder / "saved"
    killed = _run(address, saved, kill=kill, **Every[every], **run)
    steps = {int(path.name.split("-")[1]): path for path in saved.glob("checkpoint-*")}
    step, accumulated = max(steps), run.get("gradient_accumulation_steps", 1)
    epoch, inside = divmod(step, -(-STEPS // accumulated))
    done = epoch * STEPS + inside * accumulated
    assert whole.losses[: len(killed.losses)] == killed.losses
    resumed = _run(address, saved, found=steps[step], **run)
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
        ("evaluated", "steps", 25),
        ("accumulated", "steps", 17),
        ("accumulated", "steps", 19),  # in the short group at an epoch's end
        ("steps", "epochs", 21),
    ],
)
def test_a_killed_run_goes_on_from_trainers_checkpoint(
    run: str, every: str, kill: int, address: str, tmp_path: Path
) -> None:
    """With the same batches and bit for bit the same losses as a run that was not killed."""
    expected, found = _resumed(address, tmp_path, every, kill, **Runs[run])

    assert expected == found


@pytest.mark.long
@pytest.mark.parametrize("kill", range(9, 24))
@pytest.mark.parametrize("every", ["steps", "epochs"])
@pytest.mark.parametrize("run", Runs)
def test_wherever_it_is_killed(
    run: str, every: str, kill: int, address: str, tmp_path: Path
) -> None:
    """In each step of an epoch and around its ends."""
    if kill < STEPS + 1:
        pytest.skip("nothing was saved yet")
    expected, found = _resumed(address, tmp_path, every, kill, **Runs[run])

    assert expected == found


@pytest.mark.long
def test_workers_may_receive(address: str, tmp_path: Path) -> None:
    """What they have read ahead is not in the checkpoint."""
    expected, found = _resumed(address, tmp_path, "steps", 13, dataloader_num_workers=1)

    assert expected == found


def test_evaluations_see_each_sample_once_and_move_nothing(address: str, tmp_path: Path) -> None:
    """On its own, and inside the epochs of a training."""
    line = Line()
    trainer = _trainer(address, tmp_path, line, **Runs["evaluated"])

    trainer.evaluate()
    trainer.train()

    assert {HELD_OUT} == set(line.counts)
    assert line.seen == _run(address, tmp_path).seen


def test_an_epoch_that_is_stopped_is_over(address: str, tmp_path: Path) -> None:
    """The next one begins with its first batch, as with Trainer's own loader."""
    whole = _run(address, tmp_path)
    short = _run(address, tmp_path, callbacks=[StopEpochs()])

    expected = [whole.seen[epoch * STEPS :][:7] for epoch in range(EPOCHS)]
    assert [batch for epoch in expected for batch in epoch] == short.seen


def test_a_checkpoint_without_a_place_is_refused(address: str, tmp_path: Path) -> None:
    """Training would begin with the first epoch again."""
    _run(address, tmp_path, **Every["epochs"])
    checkpoint = tmp_path / f"checkpoint-{STEPS}"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    del state["stateful_callbacks"]["HeadracePlace"]
    (checkpoint / "trainer_state.json").write_text(json.dumps(state))

    with pytest.raises(BadArgumentError, match=r"after step 10 and does not say where the data"):
        _run(address, tmp_path, found=checkpoint)


@pytest.mark.parametrize("wrong", [{"end": "drop_last"}, {"epochs": None}, {"end": "uneven"}])
def test_a_dataset_that_would_be_counted_wrong_is_refused(
    wrong: dict[str, Any], address: str, tmp_path: Path
) -> None:
    """One that leaves samples out, goes on in the next loop, or lets ranks differ."""
    trainer = _trainer(address, tmp_path, Line(), evaluated=_validation(address, **wrong))

    with pytest.raises(BadArgumentError, match=r"end='pad' and epochs='same'"):
        trainer.evaluate()


def test_other_datasets_are_read_as_ever(address: str, tmp_path: Path) -> None:
    """By Trainer's own loader."""
    rows = [{"x": torch.ones(8), "y": torch.tensor(1.0), "id": torch.tensor(0)}] * GLOBAL_BATCH
    line = Line()
    trainer = _trainer(address, tmp_path, line, train=rows, num_train_epochs=1)

    trainer.train()

    assert isinstance(trainer.get_train_dataloader(), DataLoader)
    assert [[0] * GLOBAL_BATCH] == line.seen
