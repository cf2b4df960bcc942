"""Draw a job on 8 ranks that is killed and resumed on 6, beside the same job undisturbed.

    PYTHONPATH=examples python -m demo.picture docs/resumed.svg

Both are real: processes over gloo, a small network that learns the digits of the demo, and a server
that is killed, too. The picture, an SVG, stands in the README.
"""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from pathlib import Path

import click
from matplotlib.axes import Axes

from demo.data_sets import fetch_digits
from demo.jobs import DIGITS
from demo.plot import COLOURS, FAULT, smooth
from demo.processes import Processes
from demo.proof import judge
from demo.serving import Server, headrace_program
from demo.training import Record, Training
from headrace.loadtest.report.style import LIGHT, drawing

JOB = dataclasses.replace(
    DIGITS, epochs=7, world_sizes=(8, 6), server_dies_at=45, trainer_dies_at=110
)
_CALM = LIGHT[8]
_BEFORE, _AFTER = COLOURS


@click.command()
@click.argument("picture", type=click.Path(path_type=Path, dir_okay=False))
def main(picture: Path) -> None:
    """Train twice, compare the samples, and write the PICTURE."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = fetch_digits(folder)
        subprocess.run([headrace_program(), "convert", data, folder / "digits"], check=True)
        with Processes(folder / "logs", {"PYTHONPATH": str(Path(__file__).parents[1])}) as running:
            names = {"digits-train": "train", "digits-test": "test"}
            urls = {name: str(folder / "digits" / split) for name, split in names.items()}
            server = Server(running, urls)
            killed, calm = (
                Training(
                    job,
                    folder=folder / name,
                    processes=running,
                    server=server,
                    say=lambda line: click.echo(f"  {line}"),
                ).run()
                for name, job in (
                    ("killed", JOB),
                    ("calm", dataclasses.replace(JOB, world_sizes=JOB.world_sizes[:1])),
                )
            )
            compared = judge(killed, server.address).comparison
    if not compared.equal:
        raise click.ClickException(f"samples differ: {compared}")
    _draw(killed, calm, picture)
    click.echo(f"{compared.samples_seen:,} samples, none lost or repeated; drew {picture}")


def _draw(killed: Record, calm: Record, picture: Path) -> None:
    with drawing(picture, size=(9, 3.2)) as figure:
        _draw_losses(figure.subplots(), killed, calm)


def _draw_losses(panel: Axes, killed: Record, calm: Record) -> None:
    (undisturbed,) = calm.attempts
    before, after = killed.attempts
    # What was done after the last checkpoint was done again.
    kept = [step for step in before.steps if step.step < after.first_step]
    steps, line = [*kept, *after.steps], len(kept)
    numbers, losses = [step.step for step in steps], smooth(steps)
    panel.plot(
        [step.step for step in undisturbed.steps],
        smooth(undisturbed.steps),
        color=_CALM,
        linewidth=6,
        label="undisturbed, for comparison",
    )
    panel.plot(numbers[:line], losses[:line], color=_BEFORE, label=f"on {before.ranks}")
    panel.plot(numbers[line:], losses[line:], color=_AFTER, label=f"resumed on {after.ranks}")
    assert killed.server_killed_after is not None
    _mark(panel, killed.server_killed_after.step, "server killed")
    _mark(panel, before.steps[-1].step, f"all {before.ranks} killed")
    panel.set_xlabel("step")
    panel.set_ylabel("training loss")
    panel.set_ylim(bottom=0)
    panel.legend(loc="upper right")


def _mark(panel: Axes, step: int, what: str) -> None:
    panel.axvline(step, color=FAULT, linestyle=":")
    panel.text(step + 2, panel.get_ylim()[1], what, color=FAULT, va="top")


if __name__ == "__main__":
    main()
