"""`headrace index`: store the index of a source, or the lengths of documents to pack."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from headrace.cli.show.progress import shard_progress
from headrace.cli.show.texts import size
from headrace.cli.stored.row_counter import row_counter


@click.command(name="index")
@click.argument("source", metavar="SRC")
@click.option("--to", "url", metavar="URL", help="URL for the index.")
@click.option(
    "--source",
    "source_name",
    type=click.Choice(["mds", "parquet", "webdataset"]),
    help="Format of SRC. Default: detected.",
)
@click.option("--table-version", type=click.IntRange(min=0), help="Version of a Delta table.")
@click.option(
    "--pack-length",
    type=click.IntRange(min=1),
    help="Store what is needed to pack documents into rows of this many tokens.",
)
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False),
    help="tokenizer.json of Hugging Face; the documents are then texts.",
)
@click.option(
    "--column",
    help="Column of documents. Default: the only list of numbers, or text with --tokenizer.",
)
@click.option(
    "--alike",
    multiple=True,
    help="Another column whose lists have the same lengths, packed in the same way.",
)
@click.option(
    "--cut",
    type=click.IntRange(min=0),
    default=0,
    help="Cut a document that fits into no row, if a row has room for this many tokens.",
)
@click.option("--bos", type=click.IntRange(min=0), help="Token to put before each document.")
@click.option("--eos", type=click.IntRange(min=0), help="Token to put after each document.")
@click.option(
    "--fill", type=click.IntRange(min=0), default=0, show_default=True, help="Token for padding."
)
@click.option("--refuse-longer", is_flag=True, help="Refuse documents longer than a row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    source: str,
    url: str | None,
    source_name: str | None,
    table_version: int | None,
    pack_length: int | None,
    as_json: bool,
    **packing: Any,
) -> None:
    """Store an index, so that a dataset opens faster or its documents can be packed.

    With --to, the command stores at URL an index of the MDS dataset, Parquet files, Delta table or
    WebDataset tars at SRC. URL is then a dataset like any other, with the samples of SRC. Opening
    it reads neither footers nor headers of SRC. If a file of SRC changes, an error names it; added
    files are ignored until the index is stored again.

    With --pack-length, it stores the lengths of the documents at URL, or at SRC, and how many rows
    they make. A server with the dataset NAME then serves its rows as NAME:LENGTH. Run it again
    after an append; it reads only new documents.

    With --tokenizer, documents are texts. It counts their tokens, on all processors, and the server
    makes the tokens as it sends rows; start it with `--tokenizer NAME=FILE` and the same file.

    \b
    headrace index s3://bucket/warehouse/trips --to s3://bucket/trips
    headrace index s3://bucket/corpus --pack-length 8192 --eos 2
    headrace index s3://bucket/texts --pack-length 8192 --eos 2 --tokenizer tokenizer.json
    """
    if url is None and pack_length is None:
        raise click.UsageError("give --to URL, --pack-length L, or both")
    if packing["tokenizer"] and pack_length is None:
        raise click.UsageError("--tokenizer needs --pack-length, the tokens of a row")
    options = (source_name, table_version)
    if url is not None:
        _store_index(source, url, options, as_json=as_json)
    if pack_length is not None:
        _store_packing(url or source, options, pack_length, packing, as_json=as_json)


def _store_index(
    source: str, url: str, options: tuple[str | None, int | None], *, as_json: bool
) -> None:
    from headrace.storage import (  # noqa: PLC0415 - needs the [storage] extra
        SourceOptions,
        store_index,
    )

    with shard_progress("reading files") as progress:
        pointer = store_index(
            source,
            url,
            source_options=SourceOptions(source=options[0], table_version=options[1]),
            progress=progress,
        )
    if as_json:
        click.echo(json.dumps(asdict(pointer)))
        return
    click.echo(
        f"{url}: {pointer.sample_count:,} samples of {pointer.target} ({pointer.source}), index of "
        f"{size(pointer.index.stored_bytes)}, fingerprint {pointer.fingerprint}"
    )


def _store_packing(
    url: str,
    options: tuple[str | None, int | None],
    length: int,
    packing: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    from headrace.storage import (  # noqa: PLC0415 - needs the [storage] extra
        RowOptions,
        SourceOptions,
        index_packing,
        load_tokenizer,
    )

    if packing["alike"] and not packing["column"]:
        raise click.UsageError("--alike needs --column, the column of documents")
    if packing["alike"] and packing["tokenizer"]:
        raise click.UsageError(
            "--alike packs lists of numbers, so it cannot be combined with --tokenizer"
        )
    wanted = {name: packing[name] for name in ("cut", "bos", "eos", "fill")}
    with shard_progress("counting rows") as progress:
        pointer = index_packing(
            url,
            RowOptions(length, **wanted),
            count_rows=row_counter(),
            columns=[packing["column"], *packing["alike"]] if packing["column"] else (),
            refuse_longer=packing["refuse_longer"],
            tokenizer=load_tokenizer(packing["tokenizer"]) if packing["tokenizer"] else None,
            source_options=SourceOptions(source=options[0], table_version=options[1]),
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
