"""`headrace convert`: files to shards, by a Spark session of its own."""

from __future__ import annotations

import json
from typing import Literal

import click

from headrace.cli._show import size
from headrace.cli._types import SIZE


@click.command(name="convert")
@click.argument("source", metavar="SRC")
@click.argument("url", metavar="DST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["csv", "images", "json", "orc", "parquet", "text"]),
    help="What SRC holds; told from its names if left out.",
)
@click.option("--columns", help="Names of the columns to keep, with commas between.")
@click.option("--null-value", help="What stands for a null in CSV files, such as NA.")
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "none"]),
    default="lz4",
    show_default=True,
    help="How blocks are compressed.",
)
@click.option(
    "--shard-bytes",
    type=SIZE,
    default="64MiB",
    show_default=True,
    help="Size of a shard before compression.",
)
@click.option(
    "--block-bytes",
    type=SIZE,
    default="1MiB",
    show_default=True,
    help="Size of a block, the unit of a read, before compression.",
)
@click.option(
    "--mode",
    type=click.Choice(["error", "overwrite", "append"]),
    default="error",
    show_default=True,
    help="What to do where DST holds a dataset already.",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master URL.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    source: str,
    url: str,
    file_format: str | None,
    columns: str | None,
    null_value: str | None,
    compression: Literal["lz4", "zstd", "none"],
    shard_bytes: int,
    block_bytes: int,
    mode: Literal["error", "overwrite", "append"],
    master: str,
    as_json: bool,
) -> None:
    """Convert the files at SRC into a dataset at DST, with Spark.

    SRC is a file or folder of CSV (with a header line), JSON, Parquet, ORC, text, or images in
    folders named by their label. DST is a local folder or s3://BUCKET/PREFIX.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace convert photos/ /data/photos --format images
    """
    from headrace.cli._progress import conversion_progress  # noqa: PLC0415 - as below
    from headrace.cli._spark import (  # noqa: PLC0415 - a command loads its layers when called
        guess_format,
        read_frame,
        select_columns,
        start_spark,
    )

    found = file_format or guess_format(source)
    spark = start_spark(master, verbose=bool(ctx.obj))
    from headrace.converter import write_shards  # noqa: PLC0415 - needs the [converter] extra

    try:
        frame = read_frame(spark, source, file_format=found, null_value=null_value)
        if columns:
            frame = select_columns(frame, columns.split(","))
        with conversion_progress() as progress:
            manifest = write_shards(
                frame,
                url,
                compression=compression,
                shard_bytes=shard_bytes,
                block_bytes=block_bytes,
                mode=mode,
                progress=progress,
            )
    finally:
        spark.stop()
    raw, stored = int(manifest.raw_bytes.sum()), int(manifest.stored_bytes.sum())
    facts = {
        "url": url,
        "fingerprint": manifest.fingerprint,
        "sample_count": manifest.sample_count,
        "shard_count": manifest.shard_count,
        "raw_bytes": raw,
        "stored_bytes": stored,
    }
    if as_json:
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"{url}: {manifest.sample_count:,} samples in {manifest.shard_count} shards, "
        f"{size(raw)} raw, {size(stored)} stored, fingerprint {manifest.fingerprint}"
    )
