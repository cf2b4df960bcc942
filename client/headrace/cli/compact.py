"""`headrace compact`: write a dataset again in shards as large as they should be."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

import click

from headrace.cli._progress import compact_progress
from headrace.cli._show import size
from headrace.cli._types import SIZE

if TYPE_CHECKING:
    from headrace.storage import CompactReport, Compression


@click.command(name="compact")
@click.argument("url", metavar="URL")
@click.option(
    "--shard-bytes",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Most raw bytes of a shard.",
)
@click.option(
    "--block-bytes", type=SIZE, help="Raw bytes of a block, about: the unit of a read. [1MiB]"
)
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "none"]),
    default="lz4",
    show_default=True,
    help="Of each block.",
)
@click.option("--compression-level", type=int, help="As the compression has them.")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Shards to write at once; each takes some 100 MiB of memory.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
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
    """Write the dataset at URL again in fewer, larger shards, as its new version.

    The samples and their order stay, and so does the version before, until `headrace gc`. Nothing
    is written where there are few more shards than there must be. Interrupt it or let it be killed
    whenever you like: the same command goes on with the shards that were finished.

    \b
    headrace compact s3://bucket/flights
    headrace compact s3://bucket/flights --shard-bytes 256MiB --compression zstd
    """
    from headrace.storage import (  # noqa: PLC0415 - needs the [storage] extra
        CompactOptions,
        compact,
        open_store,
    )

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
            f"{url}: {report.shard_count:,} shards are about as few as {size(report.raw_bytes)} of "
            f"samples take; nothing was written, the version stays {report.fingerprint}"
        )
    taken = f", {report.shards_taken:,} of an earlier run" if report.shards_taken else ""
    return (
        f"{url}: {report.sample_count:,} samples in {report.shard_count:,} shards{taken} instead "
        f"of {report.shards_before:,}, {size(report.raw_bytes)} raw, "
        f"{size(report.stored_bytes)} stored, fingerprint {report.fingerprint}; the version before "
        f"is {report.fingerprint_before}"
    )
