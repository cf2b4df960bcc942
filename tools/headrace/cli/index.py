"""`headrace index`: store the index of a source, or the lengths of documents to pack."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import click

from headrace.arguments import with_source
from headrace.cli.options.objects import ObjectCommand, setting_options
from headrace.cli.options.shared import missing_as_null_option
from headrace.cli.show.progress import shard_progress
from headrace.cli.show.texts import size
from headrace.cli.stored.row_counter import row_counter
from headrace.storage import RowOptions, SourceOptions, index_packing, load_tokenizer, store_index


@click.command(name="index", cls=ObjectCommand)
@click.argument("source", metavar="SRC")
@click.option("--to", "url", metavar="URL", help="URL to store the index at.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(["mds", "parquet", "webdataset"]),
    show_default="detected",
    help="Format of SRC.",
)
@click.option(
    "--table-version",
    type=click.IntRange(min=0),
    show_default="the newest",
    help="Version of a Delta table.",
)
@missing_as_null_option
@click.option(
    "--pack-length",
    type=click.IntRange(min=1),
    help="Prepare to pack documents into rows of this many tokens.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False),
    help="tokenizer.json of Hugging Face, for documents that are texts.",
)
@click.option(
    "--column",
    show_default="the only list of numbers, or text with --tokenizer",
    help="Column of documents.",
)
@click.option(
    "--alike",
    multiple=True,
    help="Another column, whose lists have the same lengths, to pack in the same way.",
)
@setting_options("headrace.storage:RowOptions", leave=("length",))
@click.option("--refuse-longer", is_flag=True, help="Fail if a document is longer than a row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    source: str,
    url: str | None,
    source_name: str | None,
    table_version: int | None,
    missing_as_null: bool,
    pack_length: int | None,
    as_json: bool,
    **packing: Any,
) -> None:
    """Store an index, to open data faster or to pack documents.

    With --to, the command stores an index of SRC at URL. SRC is an MDS dataset, Parquet files, a
    Delta table or WebDataset tars. 'URL from SRC' is then a dataset with the samples of SRC, which
    opens without reading the footers or headers of SRC; URL alone, if SRC is in the same folder or
    below it. If a file of SRC changes, an error names it. New files are ignored until you store the
    index again.

    With --pack-length, the command stores the lengths of the documents, and the number of rows that
    they make. A server that serves the dataset as NAME then serves the rows as NAME:LENGTH. After
    an append, run the command again; it reads only the new documents.

    With --tokenizer, documents are texts. The command counts their tokens on all processors, and
    the server tokenizes them when it sends rows. Start the server with `--tokenizer NAME=FILE` and
    the same file.

    \b
    headrace index s3://bucket/warehouse/trips --to s3://bucket/trips
    headrace index s3://bucket/corpus --pack-length 8192 --eos 2
    headrace index s3://bucket/texts --pack-length 8192 --eos 2 --tokenizer tokenizer.json
    """
    if url is None and pack_length is None:
        raise click.UsageError("give --to URL, --pack-length L, or both")
    if packing["tokenizer"] and pack_length is None:
        raise click.UsageError("--tokenizer needs --pack-length, the tokens of a row")
    options = {
        "source": source_name,
        "table_version": table_version,
        "missing_as_null": missing_as_null,
    }
    if url is not None:
        _store_index(source, url, options, as_json=as_json)
    if pack_length is not None:
        packed = source if url is None else with_source(url, source)
        _store_packing(packed, options, pack_length, packing, as_json=as_json)


def _store_index(source: str, url: str, options: dict[str, Any], *, as_json: bool) -> None:

    with shard_progress("reading files") as progress:
        pointer = store_index(
            source,
            url,
            source_options=SourceOptions(**options),
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    serve = url if pointer.path is not None else f"'{with_source(url, source)}'"
    click.echo(
        f"{url}: {pointer.sample_count:,} samples of {source} ({pointer.source}), index of "
        f"{size(pointer.index.stored_bytes)}, fingerprint {pointer.fingerprint}; "
        f"serve NAME={serve}"
    )


def _store_packing(
    url: str,
    options: dict[str, Any],
    length: int,
    packing: dict[str, Any],
    *,
    as_json: bool,
) -> None:

    if packing["alike"] and not packing["column"]:
        raise click.UsageError("--alike needs --column, the column of documents")
    if packing["alike"] and packing["tokenizer"]:
        raise click.UsageError(
            "--alike packs lists of numbers, so it cannot be combined with --tokenizer"
        )
    wanted = {
        field.name: packing[field.name]
        for field in fields(RowOptions)
        if packing.get(field.name) is not None
    }
    with shard_progress("counting rows") as progress:
        pointer = index_packing(
            url,
            RowOptions(length, **wanted),
            count_rows=row_counter(),
            columns=[packing["column"], *packing["alike"]] if packing["column"] else (),
            refuse_longer=packing["refuse_longer"],
            tokenizer=load_tokenizer(packing["tokenizer"]) if packing["tokenizer"] else None,
            source_options=SourceOptions(**options),
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    (table,) = (each for each in pointer.rows if each.options.length == length)
    empty = f", {pointer.empty_count:,} of them empty" if pointer.empty_count else ""
    serve = "serve the dataset as NAME"
    if packing["tokenizer"]:
        serve += f" with --tokenizer TOKENIZER={packing['tokenizer']}"
    click.echo(
        f"{url}: {pointer.sample_count:,} documents{empty} make {table.row_count:,} rows of "
        f"{length:,} of {pointer.column!r}; {serve} and read NAME:{length}"
    )
