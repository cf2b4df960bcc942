"""`headrace index`: store the index of a source, or the lengths of documents to pack."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from headrace.arguments import with_source
from headrace.cli.options.objects import ObjectCommand, field_options, object_options
from headrace.cli.show.progress import shard_progress
from headrace.cli.show.texts import size
from headrace.cli.stored.row_counter import row_counter
from headrace.storage import (
    RowOptions,
    SourceOptions,
    index_cost,
    index_packing,
    load_tokenizer,
    store_index,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is stored, and where.

    Attributes:
        url: URL to store the index at.
        pack_length: Prepare to pack documents into rows of this many tokens.
        tokenizer: tokenizer.json of Hugging Face, for documents that are texts.
        column: Column of documents; without it the only list of numbers, or text with --tokenizer.
        alike: Another column, whose lists have the same lengths, to pack in the same way.
        cost: Store what samples cost, of a column of whole numbers, such as patches of images.
        refuse_longer: Fail if a document is longer than a row.
        as_json: Print one JSON object.
    """

    url: str | None = field(default=None, metadata={"option": "--to", "metavar": "URL"})
    pack_length: int | None = None
    tokenizer: str | None = None
    column: str | None = None
    alike: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    refuse_longer: bool = field(default=False, metadata={"option": "--refuse-longer"})
    as_json: bool = field(default=False, metadata={"option": "--json"})


@click.command(name="index", cls=ObjectCommand)
@click.argument("place", metavar="SRC")
@object_options(
    "headrace.storage:SourceOptions",
    "reading",
    leave=("allow_pickle", "mixed_arrays", "index_of"),
    types={"source": click.Choice(["iceberg", "mds", "parquet", "unity", "webdataset"])},
)
@object_options(
    "headrace.cli.index:Options",
    "options",
    types={
        "pack_length": click.IntRange(min=1),
        "tokenizer": click.Path(exists=True, dir_okay=False),
    },
)
@field_options("headrace.storage:RowOptions")
def command(*, place: str, reading: SourceOptions, options: Options, **rows: Any) -> None:
    """Store an index, to open data faster or to pack documents.

    With --to, the command stores an index of SRC at URL. SRC is an MDS dataset, Parquet files, a
    Delta table or WebDataset tars. 'URL from SRC' is then a dataset with the samples of SRC, which
    opens without reading the footers or headers of SRC; URL alone, if SRC is in the same folder or
    below it. If a file of SRC changes, an error names it. New files are ignored until you store the
    index again.

    With --pack-length, the command stores the lengths of the documents, and the number of rows that
    they make. A server that serves the dataset as NAME then serves the rows as NAME:LENGTH. After
    an append, run the command again; it reads only the new documents.

    With --cost, the command stores the numbers of a column, by which Deal(cost=COLUMN) gives ranks
    even work.

    With --tokenizer, documents are texts. The command counts their tokens on all processors, and
    the server tokenizes them when it sends rows. Start the server with `--tokenizer NAME=FILE` and
    the same file.

    \b
    headrace index s3://bucket/warehouse/trips --to s3://bucket/trips
    headrace index s3://bucket/corpus --pack-length 8192 --eos 2
    headrace index s3://bucket/texts --pack-length 8192 --eos 2 --tokenizer tokenizer.json
    """
    if options.url is None and options.pack_length is None and not options.cost:
        raise click.UsageError("give --to URL, --pack-length L, --cost COLUMN, or several")
    if options.tokenizer and options.pack_length is None:
        raise click.UsageError("--tokenizer needs --pack-length, the tokens of a row")
    if options.url is not None:
        _store_index(place, options.url, reading, as_json=options.as_json)
    packed = place if options.url is None else with_source(options.url, place)
    if options.pack_length is not None:
        _store_packing(packed, reading, options, RowOptions(options.pack_length, **rows))
    for column in options.cost:
        _store_cost(packed, reading, column, as_json=options.as_json)


def _store_index(source: str, url: str, reading: SourceOptions, *, as_json: bool) -> None:
    with shard_progress("reading files") as progress:
        pointer = store_index(source, url, source_options=reading, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    serve = url if pointer.path is not None else f"'{with_source(url, source)}'"
    click.echo(
        f"{url}: {pointer.sample_count:,} samples of {source} ({pointer.source}), index of "
        f"{size(pointer.index.stored_bytes)}, fingerprint {pointer.fingerprint}; "
        f"serve NAME={serve}"
    )


def _store_cost(url: str, reading: SourceOptions, column: str, *, as_json: bool) -> None:
    with shard_progress("reading costs") as progress:
        pointer = index_cost(url, column, source_options=reading, progress=progress)
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    click.echo(
        f"{url}: the costs of {pointer.sample_count:,} samples in {column!r}; use them with "
        f"Sharding(deal=Deal(cost={column!r}))"
    )


def _store_packing(url: str, reading: SourceOptions, options: Options, rows: RowOptions) -> None:
    column, alike, tokenizer = options.column, options.alike, options.tokenizer
    if alike and not column:
        raise click.UsageError("--alike needs --column, the column of documents")
    if alike and tokenizer:
        raise click.UsageError(
            "--alike packs lists of numbers, so it cannot be combined with --tokenizer"
        )
    with shard_progress("counting rows") as progress:
        pointer = index_packing(
            url,
            rows,
            count_rows=row_counter(),
            columns=[column, *alike] if column else (),
            refuse_longer=options.refuse_longer,
            tokenizer=load_tokenizer(tokenizer) if tokenizer else None,
            source_options=reading,
            progress=progress,
        )
    if options.as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    (table,) = (each for each in pointer.rows if each.options.length == rows.length)
    empty = f", {pointer.empty_count:,} of them empty" if pointer.empty_count else ""
    serve = "serve the dataset as NAME"
    if tokenizer:
        serve += f" with --tokenizer TOKENIZER={tokenizer}"
    click.echo(
        f"{url}: {pointer.sample_count:,} documents{empty} make {table.row_count:,} rows of "
        f"{rows.length:,} of {pointer.column!r}; {serve} and read NAME:{rows.length}"
    )
