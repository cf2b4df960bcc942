"""`headrace compact`: rewrite a dataset with fewer, larger shards."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import cast

import click

from headrace.cli.options.types import SIZE
from headrace.cli.show.progress import compact_progress
from headrace.cli.show.texts import counted, size
from headrace.storage import CompactOptions, CompactReport, Compression, compact, open_store


@click.command(name="compact")
@click.argument("url", metavar="URL")
@click.option(
    "--shard-bytes",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Maximum size of a shard before compression.",
)
@click.option(
    "--block-bytes",
    type=SIZE,
    show_default="1MiB",
    help="Approximate size of a block, the unit of a read, before compression.",
)
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "none"]),
    default="lz4",
    show_default=True,
    help="Compression of each block.",
)
@click.option("--compression-level", type=int, help="Compression level.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Shards to write at the same time; each takes about 100 MiB of memory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    url: str,
    shard_bytes: int,
    block_bytes: int | None,
    compression: str,
    compression_level: int | None,
    threads: int,
    as_json: bool,
) -> None:
    """Rewrite the dataset at URL with fewer, larger shards.

    The result is a new version with the same samples in the same order. `headrace gc` removes the
    old one. Nothing is written if the dataset has only a few more shards than it needs. If you
    interrupt the command and run it again, it keeps the shards that it had finished.

    \b
    headrace compact s3://bucket/flights
    headrace compact s3://bucket/flights --shard-bytes 256MiB --compression zstd
    """
    options = CompactOptions(
        shard_bytes=shard_bytes,
        block_bytes=block_bytes,
        compression=cast("Compression", compression),
        compression_level=compression_level,
    )
    store = open_store(url)
    try:
        with compact_progress() as progress:
            report = compact(store, options=options, threads=threads, progress=progress)
    finally:
        store.close()
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
