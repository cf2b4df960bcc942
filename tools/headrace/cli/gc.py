"""`headrace gc`: remove old versions, and files that no version uses."""

from __future__ import annotations

import json
import time
from contextlib import closing

import click

from headrace.cli.options.types import DURATION
from headrace.cli.show.progress import count_progress
from headrace.cli.show.texts import counted, size
from headrace.storage import GarbagePlan, collect_garbage, open_store, plan_gc


@click.command(name="gc")
@click.argument("url", metavar="URL")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=1,
    help="Number of the newest versions to keep.",
)
@click.option(
    "--older-than",
    type=DURATION,
    default="24h",
    help="Minimum age of unused files, and minimum time since a version was replaced.",
)
@click.option("--dry-run", is_flag=True, help="List what would be removed, without removing it.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per file, and a final one."
)
def command(*, url: str, keep: int, older_than: float, dry_run: bool, as_json: bool) -> None:
    """Remove old versions of the dataset at URL, and unused files.

    The command keeps the --keep newest versions, including the current one, and versions that were
    replaced less than --older-than ago. It removes files of interrupted conversions at the same
    age, and leaves those of running ones. Choose an age longer than any training run goes on
    reading an old version.

    \b
    headrace gc s3://bucket/flights --dry-run
    headrace gc s3://bucket/flights --keep 3 --older-than 7d
    """
    with closing(open_store(url)) as store:
        plan = plan_gc(store, keep=keep, older_than_s=older_than, now_s=time.time())
        if not dry_run:
            total = len(plan.files) + len(plan.unfinished)
            with count_progress("removing", total=total, unit="files") as progress:
                collect_garbage(store, plan, progress=progress)
    if as_json:
        _print_json(plan, dry_run=dry_run)
    else:
        _print_text(plan, url=url, dry_run=dry_run)


def _print_json(plan: GarbagePlan, *, dry_run: bool) -> None:
    for version in plan.dropped:
        click.echo(json.dumps({"version": version.fingerprint, "created": version.created}))
    for entry in (*plan.files, *plan.markers):
        click.echo(json.dumps({"file": entry.name, "stored_bytes": entry.stored_bytes}))
    for unfinished in plan.unfinished:
        click.echo(
            json.dumps({"unfinished": unfinished.name, "stored_bytes": unfinished.stored_bytes})
        )
    summary = {
        "removed": not dry_run,
        "versions_kept": len(plan.kept),
        "versions_dropped": len(plan.dropped),
        "files": len(plan.files),
        "unfinished": len(plan.unfinished),
        "stored_bytes": plan.stored_bytes,
        "young_files": plan.young_count,
    }
    click.echo(json.dumps(summary))


def _print_text(plan: GarbagePlan, *, url: str, dry_run: bool) -> None:
    if dry_run:
        for version in plan.dropped:
            click.echo(f"version {version.fingerprint} of {version.created}")
        for entry in (*plan.files, *plan.markers):
            click.echo(f"{size(entry.stored_bytes):>10}  {entry.name}")
        for unfinished in plan.unfinished:
            click.echo(f"{size(unfinished.stored_bytes):>10}  {unfinished.name} (unfinished)")
    click.echo(
        f"{url}: {'would remove' if dry_run else 'removed'} "
        f"{counted(len(plan.dropped), 'version')}, {counted(len(plan.files), 'file')} and "
        f"{counted(len(plan.unfinished), 'unfinished upload')}, {size(plan.stored_bytes)}, "
        f"leaving {counted(len(plan.kept), 'version')}"
    )
    if plan.young_count:
        click.echo(
            f"{plan.young_count:,} unused files stay: they are too new, or their writer is at work"
        )
