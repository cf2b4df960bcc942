"""`headrace convert`: convert files to shards, with Spark if only Spark can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from headrace.cli.options.pairs import PAIR, parse_columns, parse_hashes, parse_shapes, parse_splits
from headrace.cli.options.types import FOLDER_URL, SIZE
from headrace.cli.show.texts import counted, size
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.converter import FilesLeftOut, SourceFormat
    from headrace.converter.text import LeftOut
    from headrace.converter.text.options import TextKind
    from headrace.storage import Manifest
    from headrace.storage.mds import Index

    _Tell = Callable[[LeftOut | FilesLeftOut], None]

_FORMATS = (
    *("csv", "delta", "headrace", "huggingface", "images", "json"),
    *("mds", "orc", "parquet", "text", "webdataset"),
)
_SPARK_ALONE = {"orc"}
_TEXT = {"csv", "json", "text"}
_EITHER = {"images", "parquet", *_TEXT}
_LOCAL = "local[*]"
_MOST_FILES = 20  # names in a line that a person reads
_MOST_COLUMNS = 20  # lines before the summary


@click.command(name="convert")
@click.argument("source", metavar="SRC")
@click.argument("url", metavar="DST", type=FOLDER_URL)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="Format of SRC. Default: detected from file names.",
)
@click.option(
    "--columns", help="Columns to keep, separated by commas; OLD=NEW renames. Default: all."
)
@click.option(
    "--type",
    "types",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Cast a column, such as label=int32; a value that does not fit is refused.",
)
@click.option(
    "--shape",
    "shapes",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=SHAPE",
    help="Tensor shape of an array column, such as image=28x28, or COLUMN=ragged.",
)
@click.option("--split", help="Fractions by name, such as train=0.9,val=0.1: DST/train, DST/val.")
@click.option("--split-by", metavar="COLUMN", help="The column that names each sample's split.")
@click.option(
    "--split-seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed that assigns samples for --split.",
)
@click.option(
    "--shuffle-seed",
    type=int,
    help="Store samples in random order, using as much temporary disk space as SRC has "
    "data. Rarely needed: servers shuffle when they serve.",
)
@click.option(
    "--spill-folder",
    metavar="FOLDER",
    help="Folder for the temporary data of --shuffle-seed. Default: the system's folder for "
    "temporary files.",
)
@click.option(
    "--null-value",
    "null_values",
    multiple=True,
    help="Unquoted CSV value that means null, such as NA, in addition to empty fields; can "
    "be given several times.",
)
@click.option(
    "--encoding",
    default="utf-8",
    show_default=True,
    help="Encoding of CSV, JSON and text, such as latin-1 or utf-16.",
)
@click.option(
    "--delimiter",
    help=r"Separator of CSV fields, such as ';' or '\t'. Default: a comma, or a tab in .tsv files.",
)
@click.option(
    "--no-header",
    is_flag=True,
    help="CSV files have no header line; name the columns column0, column1, ….",
)
@click.option(
    "--on-error",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="What to do with unreadable records of CSV, JSON and text, and with damaged "
    "images: fail and name them, or leave them out and list them.",
)
@click.option(
    "--label",
    type=click.Choice(["first", "last", "none"]),
    help="Which of several nested folders is the class of an image: the first below SRC or "
    "its split, the last, or none.",
)
@click.option(
    "--table-version",
    type=click.IntRange(min=0),
    help="Version of a Delta table. Default: the newest.",
)
@click.option(
    "--lengths",
    metavar="COLUMN",
    help="Column of lists whose lengths are stored, so that `headrace index --pack-length` need "
    "not read the data.",
)
@click.option("--allow-pickle", is_flag=True, help="Keep pickled columns of MDS, as bytes.")
@click.option(
    "--write",
    "written_as",
    type=click.Choice(["arrow", "mds"]),
    default="arrow",
    show_default=True,
    help="Output format: headrace's shards, or those of MosaicML Streaming.",
)
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "none", "br", "bz2", "gz", "snappy"]),
    help="Compression of blocks: lz4 (default), zstd or none; of MDS shards: none (default) "
    "or any but lz4.",
)
@click.option("--compression-level", type=int, help="Compression level.")
@click.option(
    "--hashes",
    help="Hashes to store for each MDS file, separated by commas, such as sha256,xxh64, or "
    "none. Default: xxh3_64.",
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
    help="Size of a block, the unit of a read, before compression. Default: 1MiB, or the size of "
    "a shard where that is less.",
)
@click.option(
    "--mode",
    type=click.Choice(["error", "overwrite", "append"]),
    default="error",
    show_default=True,
    help="What to do if DST already holds a dataset.",
)
@click.option(
    "--master",
    help="Master URL for Spark. Default: local[*], used only for ORC. If given, Spark also "
    "reads CSV, JSON, text, Parquet and images.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    *,
    source: str,
    url: str,
    file_format: str | None,
    columns: str | None,
    types: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, str], ...],
    split: str | None,
    split_by: str | None,
    split_seed: int,
    shuffle_seed: int | None,
    spill_folder: str | None,
    null_values: tuple[str, ...],
    encoding: str,
    delimiter: str | None,
    no_header: bool,
    on_error: Literal["refuse", "skip"],
    label: Literal["first", "last", "none"] | None,
    table_version: int | None,
    allow_pickle: bool,
    written_as: Literal["arrow", "mds"],
    compression: str | None,
    compression_level: int | None,
    hashes: str | None,
    shard_bytes: int,
    block_bytes: int | None,
    lengths: str | None,
    mode: Literal["error", "overwrite", "append"],
    master: str | None,
    as_json: bool,
) -> None:
    """Convert the data at SRC into a dataset at DST.

    SRC is a file or folder: CSV, JSON, lines of text, Parquet, a Delta table, images in one folder
    per class, a MosaicML Streaming dataset, a folder written by Hugging Face's save_to_disk,
    WebDataset tars, a headrace dataset, or ORC, which requires Spark and Java. SRC and DST are
    local paths or s3://BUCKET/PREFIX.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace convert photos/ /data/photos --split train=0.9,val=0.1
    headrace convert s3://bucket/mosaic s3://bucket/own --columns tokens,label=target

    Exit codes: 0 success; 1 failure, no dataset was written or changed; 2 wrong command line or
    input; 130 interrupted.
    """
    from headrace.cli.inputs.guess import guess_format  # noqa: PLC0415 - a command loads its layers
    from headrace.converter import WriteOptions  # noqa: PLC0415 - needs the [converter] extra

    found = file_format or guess_format(source)
    what = _What(
        url=url,
        settings={
            "columns": parse_columns(columns),
            "splits": parse_splits(split, split_by),
            "split_seed": split_seed,
            "shuffle_seed": shuffle_seed,
            "format": written_as,
            "write": WriteOptions(
                types=dict(types),
                shapes=parse_shapes(shapes),
                compression=compression,
                compression_level=compression_level,
                hashes=parse_hashes(hashes),
                shard_bytes=shard_bytes,
                block_bytes=block_bytes,
                lengths=lengths,
            ),
            "mode": mode,
        },
    )
    reading = _Reading(
        source=source,
        file_format=found,
        master=master or _LOCAL,
        verbose=bool(ctx.obj),
        text={
            "encoding": encoding,
            "delimiter": "\t" if delimiter == r"\t" else delimiter,
            "header": not no_header,
            "null_values": null_values,
            "on_error": on_error,
        },
        images={"label": label, "on_error": on_error},
        table_version=table_version,
        allow_pickle=allow_pickle,
        spill_folder=spill_folder,
    )
    left: list[LeftOut | FilesLeftOut] = []

    def tell(what: LeftOut | FilesLeftOut) -> None:
        # Before the conversion, which may fail because of what it left out.
        left.append(what)
        _tell_left_out(what)

    write = _with_spark if _needs_spark(found, master=master) else _without_spark
    written = write(reading, what, tell)
    facts = {name: _facts(_place(url, name), part) for name, part in written.items()}
    if as_json:
        one = facts.get("", {"url": url, "splits": facts})
        click.echo(
            json.dumps({**one, "left_out": sum(each.count for each in left)} if left else one)
        )
    else:
        _tell_facts(facts.values())


def _tell_facts(facts: Iterable[Mapping[str, Any]]) -> None:
    for fact in facts:
        click.echo(
            f"{fact['url']}: {counted(fact['sample_count'], 'sample')} in "
            f"{counted(fact['shard_count'], 'shard')}, "
            f"{size(fact['raw_bytes'])} raw, {size(fact['stored_bytes'])} stored, "
            f"fingerprint {fact['fingerprint']}"
        )


@dataclass(frozen=True, slots=True)
class _What:
    """Where to write, and the common options of `write_shards` and `convert_files`."""

    url: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """What to read, how, and with which Spark, if any."""

    source: str
    file_format: str
    master: str
    verbose: bool
    text: Mapping[str, Any]
    images: Mapping[str, Any]
    table_version: int | None
    allow_pickle: bool
    spill_folder: str | None


def _needs_spark(file_format: str, *, master: str | None) -> bool:
    if file_format in _SPARK_ALONE:
        return True
    if master is not None and file_format not in _EITHER:
        raise BadArgumentError(
            f"SRC is {file_format}, which headrace does not read with Spark; leave --master out, "
            "or convert a Parquet copy",
            field="master",
        )
    return master is not None


def _with_spark(reading: _Reading, what: _What, tell: _Tell) -> dict[str, Manifest | Index]:
    from headrace.cli.inputs.spark import read_frame, start_spark, text_rows  # noqa: PLC0415
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415

    spark = start_spark(reading.master, verbose=reading.verbose)
    from headrace.converter import write_shards  # noqa: PLC0415 - needs the [converter] extra

    settings = what.settings
    try:
        if reading.file_format == "images":
            return _without_spark(reading, what, tell, spark)
        with conversion_progress() as progress:
            if reading.file_format in _TEXT:
                kind = cast("TextKind", reading.file_format)
                frame, settings, found = text_rows(
                    spark, reading.source, kind, reading.text, settings, progress=progress
                )
                tell(found)
            else:
                frame = read_frame(spark, reading.source, file_format=reading.file_format)
            written: Any = write_shards(frame, what.url, progress=progress, **settings)
    finally:
        spark.stop()
    return written if isinstance(written, dict) else {"": written}


def _without_spark(
    reading: _Reading,
    what: _What,
    tell: _Tell,
    spark: SparkSession | None = None,
) -> dict[str, Manifest | Index]:
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415
    from headrace.converter import ImageOptions, convert_files  # noqa: PLC0415 - needs the [converter] extra
    from headrace.converter.text import TextOptions  # noqa: PLC0415 - as above
    from headrace.storage import SourceOptions  # noqa: PLC0415

    with conversion_progress() as progress:
        return convert_files(
            reading.source,
            what.url,
            source_format=cast("SourceFormat", reading.file_format),
            source_options=SourceOptions(
                allow_pickle=reading.allow_pickle, table_version=reading.table_version
            ),
            text=TextOptions(**reading.text),
            images=ImageOptions(**reading.images),
            spark=spark,
            spill_folder=reading.spill_folder,
            left_out=tell,
            notice=lambda sentence: click.echo(sentence, err=True),
            progress=progress,
            **what.settings,
        )


def _tell_left_out(left: LeftOut | FilesLeftOut) -> None:
    """List what is in SRC but not in the dataset."""
    from headrace.converter import FilesLeftOut  # noqa: PLC0415 - needs the [converter] extra

    if isinstance(left, FilesLeftOut):
        click.echo(f"left out {left}", err=True)
        return
    if left.files:
        shown = ", ".join(left.files[:_MOST_FILES])
        more = f" and {len(left.files) - _MOST_FILES} more" if left.files[_MOST_FILES:] else ""
        click.echo(f"left out files of other kinds: {shown}{more}", err=True)
    if left.merged:
        folders = ", ".join(f"{folder}/" for folder in left.merged)
        click.echo(
            f"the records of {folders} become one dataset; convert each folder separately to keep "
            "them apart",
            err=True,
        )
    for column in left.untyped[:_MOST_COLUMNS]:
        click.echo(str(column), err=True)
    if left.untyped[_MOST_COLUMNS:]:
        rest = len(left.untyped) - _MOST_COLUMNS
        click.echo(f"and {rest:,} more columns stay text because of a few values", err=True)
    if left.count:
        records = "record" if left.count == 1 else "records"
        click.echo(f"left out {left.count:,} {records}:", err=True)
        for refusal in left.first:
            click.echo(f"  {refusal}", err=True)
        if left.count > len(left.first):
            click.echo(f"  and {left.count - len(left.first):,} more", err=True)


def _place(url: str, split: str) -> str:
    return f"{url.rstrip('/')}/{split}" if split else url


def _facts(url: str, written: Manifest | Index) -> dict[str, Any]:
    counts = written.sample_counts
    return {
        "url": url,
        "fingerprint": written.fingerprint,
        "sample_count": int(counts.sum()),
        "shard_count": len(counts),
        "raw_bytes": int(written.raw_bytes.sum()),
        "stored_bytes": int(written.stored_bytes.sum()),
    }
