"""`headrace compact`: rewrite a dataset with fewer, larger shards."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict

import click

from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.show.progress import compact_progress
from headrace.cli.show.texts import counted, size
from headrace.storage import CompactOptions, CompactReport, compact, open_store


@click.command(name="compact", cls=ObjectCommand)
@click.argument("url", metavar="URL")
@object_options(
    "headrace.storage:CompactOptions",
    "options",
    types={"compression": click.Choice(["lz4", "zstd", "none"]), "compression_level": int},
)
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=4,
    help="Shards to write at the same time; each takes about 100 MiB of memory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, url: str, options: CompactOptions, threads: int, as_json: bool) -> None:
    """Rewrite the dataset at URL with fewer, larger shards.

    The result is a new version with the same samples in the same order. `headrace gc` removes the
    old one. Nothing is written if the dataset has only a few more shards than it needs. If you
    interrupt the command and run it again, it keeps the shards that it had finished.

    \b
    headrace compact s3://bucket/flights
    headrace compact s3://bucket/flights --shard-bytes 256MiB --compression zstd
    """
    with closing(open_store(url)) as store, compact_progress() as progress:
        report = compact(store, options=options, threads=threads, progress=progress)
    click.echo(json.dumps({"url": url, **asdict(report)}) if as_json else _text(url, report))


def _text(url: str, report: CompactReport) -> str:
    if not report.written:
        return (
            f"{url}: {counted(report.shard_count, 'shard')}, about as few as possible for "
            f"{size(report.raw_bytes)} of samples; nothing was written, and the version is still "
            f"{report.fingerprint}"
        )
    resumed = (
        f", {report.shards_taken:,} of them from an earlier run," if report.shards_taken else ""
    )
    return (
        f"{url}: {counted(report.sample_count, 'sample')} in "
        f"{counted(report.shard_count, 'shard')}{resumed} instead of "
        f"{report.shards_before:,}, {size(report.raw_bytes)} raw, {size(report.stored_bytes)} "
        f"stored, fingerprint {report.fingerprint}; the previous version is "
        f"{report.fingerprint_before}"
    )
