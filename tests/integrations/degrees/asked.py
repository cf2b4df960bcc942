"""Kill a job again and again, and compare what it trained on with a run that nothing disturbs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from exam.answers import Answer, complaint
from exam.judge import compare
from integrations.degrees.runs import Seen, history, trained_on
from integrations.degrees.told import EVERY, LAST, Task
from integrations.line import STEPS

RANKS, FEWER, OTHERS = 4, 2, 3
"""As many as begin, go on after the first kill, and go on after the second."""


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one loader.

    Attributes:
        kills: The steps that it was killed in.
        same: What 4 ranks trained on that went on as 4 ranks, against 4 that were never killed.
        equal_losses: Whether each of these had the same losses, bit for bit.
        degrees: What 4 ranks trained on that went on as 2, and then as 3.
    """

    kills: tuple[int, int]
    same: Answer
    equal_losses: bool
    degrees: Answer

    def to_json(self) -> dict[str, Any]:
        """Return it for a file."""
        return asdict(self)


def ask(task: Task) -> Found:
    """Run a job undisturbed, and killed in epochs 1 and 3.

    Raises:
        RuntimeError: It fails before anything happens.
    """
    kills = _moment(1), _moment(3)
    whole, begun = (
        history(replace(task, folder=task.folder / name), [(RANKS, kill)])
        for name, kill in (("whole", LAST), ("same", kills[0]))
    )
    for run in (whole[0], begun[0]):
        if not run.is_well:
            raise RuntimeError(f"{task.framework} by {task.loader} does not run: {run.said}")
    same, degrees = (replace(task, folder=task.folder / name) for name in ("same", "degrees"))
    shutil.copytree(same.folder, degrees.folder)
    stayed = begun + history(same, [(RANKS, kills[1]), (RANKS, LAST)])
    changed = begun + history(degrees, [(FEWER, kills[1]), (OTHERS, LAST)])
    return Found(
        kills, answer(whole, stayed), _losses(whole) == _losses(stayed), answer(whole, changed)
    )


def _moment(epoch: int) -> int:
    """Return a step of an epoch, at random, whose checkpoint lies inside the epoch and is whole.

    In the step after a checkpoint, a rank may die while another one still writes it.
    """
    steps = range(epoch * STEPS, (epoch + 1) * STEPS)
    first = next(step for step in steps[1:] if step % EVERY == 0)
    return random.choice([step for step in steps if step > first and step % EVERY])


def answer(whole: Sequence[Seen], parts: Sequence[Seen]) -> Answer:
    """Compare what counts, or say why there is nothing to compare.

    Args:
        whole: A run that nothing disturbed.
        parts: Those of a run that was killed in between.
    """
    last = parts[-1]
    if last.is_well:
        return Answer(kind="read", difference=compare(trained_on(whole), trained_on(parts)))
    name, _, message = last.said.partition(": ")
    error = {"error": name.rpartition(".")[2], "message": message}
    batches: list[dict[str, Any]] = [{"ids": ids} for ids in last.ids.values()]
    lines = [*batches, error] if last.said else batches
    died = Answer(kind="failed", message="a rank died without a message")
    return complaint([lines], hung=last.hung) or died


def _losses(parts: Sequence[Seen]) -> dict[int, list[float]]:
    """Return losses of the steps that count, by rank."""
    return {step: losses for part in parts for step, losses in part.losses.items()}
