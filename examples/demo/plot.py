"""Draw the trainings, with their faults marked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from demo.events import StepDone
from demo.training import Attempt, Record
from headrace.loadtest.report.style import LIGHT, drawing

COLOURS = LIGHT[0], LIGHT[2]
_ACCURACY, FAULT = LIGHT[4], LIGHT[6]
"""Which the colour-blind can tell apart: of two attempts, and of others."""


def draw(records: Sequence[Record], path: Path) -> None:
    """Write a PNG picture with one panel a training."""
    with drawing(path, size=(11, 3.3 * len(records))) as figure:
        panels = figure.subplots(len(records), squeeze=False)[:, 0]
        for panel, record in zip(panels, records, strict=True):
            handles = _draw_record(panel, record)
        figure.legend(handles=handles, loc="outside upper center", ncols=4)


def _draw_record(panel: Axes, record: Record) -> list[Artist]:
    """Draw a training; return what the legend names, which is the same for all."""
    before, after = (
        _draw_loss(panel, attempt, colour=colour)
        for attempt, colour in zip(record.attempts, COLOURS, strict=True)
    )
    before.set_label("training loss, about ten steps")
    after.set_label("the same, resumed by other ranks")
    faults = _mark_faults(panel, record)
    panel.set_title(
        f"{record.job.task}: {record.attempts[0].ranks}, then {record.attempts[1].ranks}",
        loc="left",
    )
    panel.set_xlabel(f"step (global batch of {record.job.global_batch_size} samples)")
    panel.set_ylabel("training loss")
    panel.set_ylim(bottom=0)
    return [before, after, *_draw_accuracy(panel.twinx(), record), *faults]


def _draw_accuracy(panel: Axes, record: Record) -> list[Artist]:
    last_steps = {step.epoch: step.step for attempt in record.attempts for step in attempt.steps}
    tests = [test for attempt in record.attempts for test in attempt.tests]
    (line,) = panel.plot(
        [last_steps[test.epoch] for test in tests],
        [100 * test.test_accuracy for test in tests],
        "o--",
        clip_on=False,
        color=_ACCURACY,
        label="test accuracy after each epoch",
    )
    floor = panel.axhline(
        100 * record.job.accuracy_floor,
        color=_ACCURACY,
        alpha=0.5,
        linewidth=1,
        label="accuracy that the demo asks for",
    )
    panel.grid(visible=False)  # there is one of the loss
    panel.set_ylabel("test accuracy, %")
    panel.set_ylim(0, 100)
    return [line, floor]


def _draw_loss(panel: Axes, attempt: Attempt, *, colour: str) -> Line2D:
    steps = [step.step for step in attempt.steps]
    panel.plot(steps, [step.loss for step in attempt.steps], color=colour, alpha=0.25)
    (line,) = panel.plot(steps, smooth(attempt.steps), color=colour)
    return line


def _mark_faults(panel: Axes, record: Record) -> list[Artist]:
    killed, successor = record.attempts
    assert record.server_killed_after is not None
    last = killed.steps[-1].step
    return [
        panel.axvline(
            record.server_killed_after.step, color=FAULT, linestyle=":", label="server killed"
        ),
        panel.axvline(last, color=FAULT, label="trainers killed"),
        panel.axvspan(
            successor.first_step, last, color=FAULT, alpha=0.2, label="steps done once more"
        ),
    ]


def smooth(steps: Sequence[StepDone]) -> list[float]:
    """Average the losses exponentially over about ten steps, without a bias at the start."""
    keep, value, weight = 0.9, 0.0, 0.0
    smooth: list[float] = []
    for step in steps:
        value = keep * value + (1 - keep) * step.loss
        weight = keep * weight + (1 - keep)
        smooth.append(value / weight)
    return smooth
