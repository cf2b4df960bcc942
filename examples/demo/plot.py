"""Draw the loss curves of the trainings, with the faults marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from demo.events import StepDone
from demo.training import Attempt, Record

_COLOURS = ("tab:blue", "tab:green")


def draw(records: Sequence[Record], path: Path) -> None:
    """Write a PNG picture with one panel a training."""
    figure = Figure(figsize=(13, 4 * len(records)), layout="constrained")
    panels = figure.subplots(len(records), squeeze=False)[:, 0]
    for panel, record in zip(panels, records, strict=True):
        _draw_record(panel, record)
    figure.savefig(path, dpi=110)


def _draw_record(panel: Axes, record: Record) -> None:
    for attempt, colour in zip(record.attempts, _COLOURS, strict=True):
        _draw_loss(panel, attempt, colour=colour)
    _mark_faults(panel, record)
    panel.set_title(f"{record.job.task}: {record.job.goal}")
    panel.set_xlabel(f"step (global batch of {record.job.global_batch_size} samples)")
    panel.set_ylabel("training loss")
    panel.set_ylim(bottom=0)
    accuracy = panel.twinx()
    last_steps = {step.epoch: step.step for attempt in record.attempts for step in attempt.steps}
    tests = [test for attempt in record.attempts for test in attempt.tests]
    accuracy.plot(
        [last_steps[test.epoch] for test in tests],
        [100 * test.test_accuracy for test in tests],
        "o--",
        color="tab:orange",
        label="test accuracy after each epoch",
    )
    floor = 100 * record.job.accuracy_floor
    accuracy.axhline(
        floor,
        color="tab:orange",
        alpha=0.4,
        linewidth=1,
        label=f"floor: accuracy that the demo asks for, {floor:.0f} %",
    )
    accuracy.set_ylabel("test accuracy in %")
    lines = [*panel.get_legend_handles_labels()[0], *accuracy.get_legend_handles_labels()[0]]
    panel.legend(handles=lines, loc="upper left", bbox_to_anchor=(1.1, 1))


def _draw_loss(panel: Axes, attempt: Attempt, *, colour: str) -> None:
    steps = [step.step for step in attempt.steps]
    whose = f"{attempt.ranks}, from step {attempt.first_step}"
    losses = [step.loss for step in attempt.steps]
    panel.plot(steps, losses, color=colour, alpha=0.25, label=f"loss of each step, {whose}")
    smooth = _smooth(attempt.steps)
    panel.plot(steps, smooth, color=colour, label=f"mean of about ten steps, {whose}")


def _mark_faults(panel: Axes, record: Record) -> None:
    killed, successor = record.attempts
    assert record.server_killed_after is not None
    panel.axvline(
        record.server_killed_after.step, color="tab:red", linestyle=":", label="server killed"
    )
    panel.axvline(killed.steps[-1].step, color="tab:red", label="trainer killed")
    panel.axvspan(
        successor.first_step,
        killed.steps[-1].step,
        color="tab:red",
        alpha=0.12,
        label="steps done once more",
    )


def _smooth(steps: Sequence[StepDone]) -> list[float]:
    """Average the losses exponentially over about ten steps, without a bias at the start."""
    keep, value, weight = 0.9, 0.0, 0.0
    smooth: list[float] = []
    for step in steps:
        value = keep * value + (1 - keep) * step.loss
        weight = keep * weight + (1 - keep)
        smooth.append(value / weight)
    return smooth
