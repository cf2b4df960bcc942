"""`headrace index`: store once what opening a source reads."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from headrace.cli._progress import shard_progress
from headrace.cli._show import size


@click.command(name="index")
@click.argument("source", metavar="SRC")
@click.option("--to", "url", metavar="URL", required=True, help="Where the index goes.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(["mds", "parquet", "webdataset"]),
    help="What SRC is; found out if left out.",
)
@click.option("--table-version", type=click.IntRange(min=0), help="Version of a Delta table.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *, source: str, url: str, source_name: str | None, table_version: int | None, as_json: bool
) -> None:
    """Store the index of the MDS dataset, Parquet files, Delta table or WebDataset tars at SRC.

    URL is then a dataset like any other, with the samples of SRC: opening it reads no footers
    and no headers. It stays what it is: a file of SRC that changes is an error that names it, and
    files that are added are left out until the index is stored again.

    \b
    headrace index s3://bucket/warehouse/trips --to s3://bucket/trips
    headrace serve trips=s3://bucket/trips
    """
    from headrace.storage import (  # noqa: PLC0415 - needs the [storage] extra
        SourceOptions,
        store_index,
    )

    with shard_progress("reading files") as progress:
        pointer = store_index(
            source,
            url,
            source_options=SourceOptions(source=source_name, table_version=table_version),
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    click.echo(
        f"{url}: {pointer.sample_count:,} samples of {pointer.target} ({pointer.source}), index of "
        f"{size(pointer.index.stored_bytes)}, fingerprint {pointer.fingerprint}"
    )
