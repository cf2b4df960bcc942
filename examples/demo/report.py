"""Say at the end what happened: tables and a page for people, one JSON file for programs."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from demo.proof import Verdict

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>headrace demo</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; padding: 0 1rem;
  max-width: 72rem; margin: 2rem auto; }}
img {{ max-width: 100%; }}
pre {{ overflow-x: auto; padding: 1rem; border: 1px solid #ccc; font-size: 13px; }}
</style>
<h1>What happened in the demo</h1>
{figures}
<h2>Step by step</h2>
{shown}
</html>
"""


def print_tables(console: Console, verdicts: Sequence[Verdict]) -> None:
    """Print the faults, and what was learned and seen all the same."""
    console.print(_faults(verdicts))
    console.print(_results(verdicts))
    _print_digests(console, verdicts)


def write_page(console: Console, pictures: Mapping[str, Path], path: Path) -> None:
    """Write a page that needs no other file: pictures, and what the console has shown.

    Args:
        console: It records.
        pictures: PNG files by their titles.
        path: Of the page.
    """
    figures = "".join(
        f'<h2>{title}</h2><img alt="{title}" src="data:image/png;base64,'
        f'{b64encode(picture.read_bytes()).decode()}">'
        for title, picture in pictures.items()
    )
    shown = console.export_html(inline_styles=True, clear=False, code_format="<pre>{code}</pre>")
    path.write_text(_PAGE.format(figures=figures, shown=shown), encoding="utf-8")


def write_summary(verdicts: Sequence[Verdict], path: Path, *, seconds: float) -> None:
    """Write the same as JSON."""
    summary = {
        "passed": all(verdict.passed for verdict in verdicts),
        "seconds": round(seconds, 1),
        "trainings": [_as_json(verdict) for verdict in verdicts],
    }
    path.write_text(json.dumps(summary, indent=2) + "\n")


def print_next_steps(console: Console, *, flights: Path) -> None:
    """Print what somebody who has seen the demo can type next."""
    headrace = Path(sys.executable).with_name("headrace")
    address = "127.0.0.1:50051"
    commands = (
        (
            f"{headrace} convert {flights} ./flights --null-value NA",
            "or your own file or folder",
        ),
        (f"{headrace} serve flights=./flights --listen {address}", "leave it running"),
        (f"{headrace} read {address} flights --batch-size 256 --batches 3", "look at batches"),
        (f"{headrace} doctor {address} flights --need 5000/s", "will a job be fed from here?"),
    )
    console.print("\n[bold]What to try next[/]", highlight=False)
    for command, why in commands:
        console.print(f"   [dim]# {why}[/]", highlight=False, soft_wrap=True)
        console.print(f"   {command}", highlight=False, soft_wrap=True)
    console.print(
        "   Then train: examples/minimal.py is a whole loop, docs/client.md explains it.",
        highlight=False,
        soft_wrap=True,
    )


def _faults(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="What was killed", title_justify="left", show_lines=True)
    for heading in ("training", "SIGKILL to", "what the training saw"):
        table.add_column(heading)
    table.add_column("samples\nlost", justify="right")
    table.add_column("samples\nrepeated", justify="right")
    for verdict in verdicts:
        compared = verdict.comparison
        for victim, outcome in _victims(verdict):
            table.add_row(
                verdict.record.job.task,
                victim,
                outcome,
                f"{compared.samples_lost:,}",
                f"{compared.samples_repeated:,}",
            )
    return table


def _victims(verdict: Verdict) -> list[tuple[str, str]]:
    """Say who was killed when, and what came of it."""
    record = verdict.record
    killed, successor = record.attempts
    last, server_after = killed.steps[-1], record.server_killed_after
    assert server_after is not None
    pause = (
        f"a step of {1000 * record.pause_s:,.0f} ms,",
        f"usual {1000 * record.usual_step_s:.0f} ms;",
        f"{record.reconnect_count} tries to reconnect",
    )
    restart = (
        f"{successor.ranks} {'continues' if successor.world_size == 1 else 'continue'}",
        f"from step {successor.first_step},",
        f"{verdict.comparison.steps_redone} steps redone,",
        f"{record.restart_s:.1f} s in all",
    )
    return [
        (f"the server\nepoch {server_after.epoch} step {server_after.step}", "\n".join(pause)),
        (f"all of {killed.ranks}\nepoch {last.epoch} step {last.step}", "\n".join(restart)),
    ]


def _results(verdicts: Sequence[Verdict]) -> Table:
    table = Table(title="What was learned, and from which samples", title_justify="left")
    table.add_column("training")
    for heading in ("test\naccuracy", "its\nfloor", "majority\nlabel", "samples\nseen"):
        table.add_column(heading, justify="right")
    table.add_column("as if\nundisturbed")
    for verdict in verdicts:
        record, compared = verdict.record, verdict.comparison
        table.add_row(
            record.job.task,
            f"{record.final_accuracy:.1%} {_mark(good=verdict.learned)}",
            f"{record.job.accuracy_floor:.1%}",
            f"{verdict.majority:.1%}",
            f"{compared.samples_seen:,}",
            _mark(good=compared.equal),
        )
    return table


def _print_digests(console: Console, verdicts: Sequence[Verdict]) -> None:
    for verdict in verdicts:
        task, compared = verdict.record.job.task, verdict.comparison
        console.print(f"{task:8}digest of the samples seen    {compared.seen_digest}")
        console.print(f"{'':8}digest of an undisturbed run  {compared.wanted_digest}")


def _mark(*, good: bool) -> str:
    return "[green]✓[/]" if good else "[red]✗[/]"


def _as_json(verdict: Verdict) -> dict[str, object]:
    record = verdict.record
    killed, successor = record.attempts
    assert record.server_killed_after is not None
    return {
        "task": record.job.task,
        "passed": verdict.passed,
        "test_accuracy": record.final_accuracy,
        "accuracy_floor": record.job.accuracy_floor,
        "majority": verdict.majority,
        "world_sizes": list(record.job.world_sizes),
        "server_killed_after_step": record.server_killed_after.step,
        "server_pause_ms": round(1000 * record.pause_s, 1),
        "usual_step_ms": round(1000 * record.usual_step_s, 1),
        "reconnect_count": record.reconnect_count,
        "trainer_killed_after_step": killed.steps[-1].step,
        "resumed_from_step": successor.first_step,
        "trainer_restart_s": round(record.restart_s, 2),
        **asdict(verdict.comparison),
    }
