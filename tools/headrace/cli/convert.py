"""`headrace convert`: convert files to shards, with Spark if only Spark can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from headrace.cli.inputs.formats import FORMATS, detect_format
from headrace.cli.options.objects import ObjectCommand, setting_options
from headrace.cli.options.pairs import PAIR, parse_columns, parse_hashes, parse_shapes, parse_splits
from headrace.cli.options.shared import missing_as_null_option
from headrace.cli.options.types import FOLDER_URL
from headrace.cli.show.texts import counted, size
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.converter import FilesLeftOut, SourceFormat
    from headrace.converter.text import LeftOut
    from headrace.converter.text.options import TextKind
    from headrace.storage import Manifest
    from headrace.storage.mds import Index

    _Report = Callable[[LeftOut | FilesLeftOut], None]

_ONLY_SPARK = {"orc"}
_TEXT = {"csv", "json", "text"}
_ALSO_SPARK = {"images", "parquet", *_TEXT}
_COMPRESSION = click.Choice(["lz4", "zstd", "none", "br", "bz2", "gz", "snappy"])
_MAX_FILES = 20  # names in a message
_MAX_COLUMNS = 20  # lines before the summary


@click.command(name="convert", cls=ObjectCommand)
@click.argument("source", metavar="SRC")
@click.argument("url", metavar="DST", type=FOLDER_URL)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    show_default="detected from file names",
    help="Format of SRC.",
)
@click.option(
    "--columns",
    show_default="all",
    help="Columns to keep, separated by commas; OLD=NEW renames.",
)
@click.option(
    "--type",
    "types",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Cast a column, such as label=int32. A value that does not fit is an error.",
)
@click.option(
    "--shape",
    "shapes",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=SHAPE",
    help="Tensor shape of an array column, such as image=28x28, or COLUMN=ragged.",
)
@click.option(
    "--split",
    "splits",
    help="Split by fractions, such as train=0.9,val=0.1, into DST/train and DST/val.",
)
@click.option("--split-by", metavar="COLUMN", help="Column that names the split of each sample.")
@click.option(
    "--split-seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of --split.",
)
@click.option(
    "--shuffle-seed",
    type=int,
    help="Store samples in random order, which needs as much temporary disk space as SRC has "
    "data. Rarely needed, since servers shuffle.",
)
@click.option(
    "--spill-folder",
    metavar="FOLDER",
    show_default="the system's temporary folder",
    help="Folder for the temporary data of --shuffle-seed.",
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
    show_default="a comma, or a tab in .tsv files",
    help=r"Separator of CSV fields, such as ';' or '\t'.",
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
    help="What to do with unreadable records of CSV, JSON and text, and with damaged images: fail "
    "and name them, or leave them out and list them.",
)
@click.option(
    "--label",
    type=click.Choice(["first", "last", "none"]),
    help="Which of several nested folders names the class of an image: the first below SRC or its "
    "split, the last, or none.",
)
@click.option(
    "--table-version",
    type=click.IntRange(min=0),
    show_default="the newest",
    help="Version of a Delta table.",
)
@click.option("--allow-pickle", is_flag=True, help="Keep pickled columns of MDS as bytes.")
@missing_as_null_option
@click.option(
    "--write",
    "format_",
    type=click.Choice(["arrow", "mds"]),
    default="arrow",
    show_default=True,
    help="Output format: headrace's shards, or those of MosaicML Streaming.",
)
@setting_options(
    "headrace.converter:WriteOptions",
    leave=("types", "shapes", "formats", "classes", "hashes"),
    types={"compression": _COMPRESSION, "compression_level": int},
)
@click.option(
    "--hashes",
    show_default="xxh3_64",
    help="Hashes to store for each MDS file, separated by commas, such as sha256,xxh64, or none.",
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
    "spark",
    show_default="local[*], only for ORC",
    help="Master URL of Spark. With it, Spark also reads CSV, JSON, text, Parquet and images.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    source: str,
    url: str,
    file_format: str | None,
    columns: str | None,
    types: tuple[tuple[str, str], ...],
    shapes: tuple[tuple[str, str], ...],
    splits: str | None,
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
    missing_as_null: bool,
    format_: Literal["arrow", "mds"],
    hashes: str | None,
    mode: Literal["error", "overwrite", "append"],
    spark: str | None,
    as_json: bool,
    **writing: Any,
) -> None:
    """Convert the data at SRC into a dataset at DST.

    SRC is a file or folder: CSV, JSON, lines of text, Parquet, a Delta table, images in a folder
    per class, a MosaicML Streaming dataset, a dataset that Hugging Face's save_to_disk wrote,
    WebDataset tars, a headrace dataset, or ORC, which requires Spark and Java. SRC and DST are
    local paths or s3://BUCKET/PREFIX.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace convert photos/ /data/photos --split train=0.9,val=0.1
    headrace convert s3://bucket/mosaic s3://bucket/own --columns tokens,label=target

    Exit codes: 0 success; 1 failure, and no dataset was written or changed; 2 wrong command line
    or input; 130 interrupted.
    """
    from headrace.converter import WriteOptions  # noqa: PLC0415 - needs the [converter] extra

    found = file_format or detect_format(source)
    target = _Target(
        url=url,
        settings={
            "columns": parse_columns(columns),
            "splits": parse_splits(splits, split_by),
            "split_seed": split_seed,
            "shuffle_seed": shuffle_seed,
            "format": format_,
            "write": WriteOptions(
                types=dict(types),
                shapes=parse_shapes(shapes),
                hashes=parse_hashes(hashes),
                **{name: value for name, value in writing.items() if value is not None},
            ),
            "mode": mode,
        },
    )
    source_options = _Source(
        url=source,
        file_format=found,
        master=spark or "local[*]",
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
        missing_as_null=missing_as_null,
        spill_folder=spill_folder,
    )
    left_out: list[LeftOut | FilesLeftOut] = []

    def report(found: LeftOut | FilesLeftOut) -> None:
        # Now, because the conversion may fail on account of what it leaves out.
        left_out.append(found)
        _print_left_out(found)

    write = _with_spark if _needs_spark(found, master=spark) else _without_spark
    written = write(source_options, target, report)
    _print_result(url, written, left_out, as_json=as_json)


def _print_result(
    url: str,
    written: Mapping[str, Manifest | Index],
    left_out: Sequence[LeftOut | FilesLeftOut],
    *,
    as_json: bool,
) -> None:
    facts = {
        split: _facts(f"{url.rstrip('/')}/{split}" if split else url, part)
        for split, part in written.items()
    }
    if as_json:
        summary = facts.get("", {"url": url, "splits": facts})
        if left_out:
            summary["left_out"] = sum(each.count for each in left_out)
        click.echo(json.dumps(summary))
    else:
        for each in facts.values():
            click.echo(
                f"{each['url']}: {counted(each['sample_count'], 'sample')} in "
                f"{counted(each['shard_count'], 'shard')}, {size(each['raw_bytes'])} raw, "
                f"{size(each['stored_bytes'])} stored, fingerprint {each['fingerprint']}"
            )


@dataclass(frozen=True, slots=True)
class _Target:
    """Where and how to write: the options that `write_shards` and `convert_files` share."""

    url: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """What to read, and how."""

    url: str
    file_format: str
    master: str
    verbose: bool
    text: Mapping[str, Any]
    images: Mapping[str, Any]
    table_version: int | None
    allow_pickle: bool
    missing_as_null: bool
    spill_folder: str | None


def _needs_spark(file_format: str, *, master: str | None) -> bool:
    if file_format in _ONLY_SPARK:
        return True
    if master is not None and file_format not in _ALSO_SPARK:
        raise BadArgumentError(
            f"SRC is {file_format}, which headrace does not read with Spark; leave --master out, "
            "or convert a Parquet copy",
            field="spark",
        )
    return master is not None


def _with_spark(source: _Source, target: _Target, report: _Report) -> dict[str, Manifest | Index]:
    from headrace.cli.inputs.spark import read_frame, start_spark, text_rows  # noqa: PLC0415
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415

    spark = start_spark(source.master, verbose=source.verbose)
    from headrace.converter import write_shards  # noqa: PLC0415 - needs the [converter] extra

    settings = target.settings
    try:
        if source.file_format == "images":
            return _without_spark(source, target, report, spark)
        with conversion_progress() as progress:
            if source.file_format in _TEXT:
                kind = cast("TextKind", source.file_format)
                frame, settings, found = text_rows(
                    spark, source.url, kind, source.text, settings, progress=progress
                )
                report(found)
            else:
                frame = read_frame(spark, source.url, file_format=source.file_format)
            written: Any = write_shards(frame, target.url, progress=progress, **settings)
    finally:
        spark.stop()
    return written if isinstance(written, dict) else {"": written}


def _without_spark(
    source: _Source,
    target: _Target,
    report: _Report,
    spark: SparkSession | None = None,
) -> dict[str, Manifest | Index]:
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415
    from headrace.converter import ImageOptions, convert_files  # noqa: PLC0415 - needs the [converter] extra
    from headrace.converter.text import TextOptions  # noqa: PLC0415 - as above
    from headrace.storage import SourceOptions  # noqa: PLC0415

    with conversion_progress() as progress:
        return convert_files(
            source.url,
            target.url,
            source_format=cast("SourceFormat", source.file_format),
            source_options=SourceOptions(
                allow_pickle=source.allow_pickle,
                missing_as_null=source.missing_as_null,
                table_version=source.table_version,
            ),
            text=TextOptions(**source.text),
            images=ImageOptions(**source.images),
            spark=spark,
            spill_folder=source.spill_folder,
            left_out=report,
            notice=lambda sentence: click.echo(sentence, err=True),
            progress=progress,
            **target.settings,
        )


def _print_left_out(left_out: LeftOut | FilesLeftOut) -> None:
    """Print what SRC contains but the dataset does not."""
    from headrace.converter import FilesLeftOut  # noqa: PLC0415 - needs the [converter] extra

    if isinstance(left_out, FilesLeftOut):
        click.echo(f"left out {left_out}", err=True)
        return
    if left_out.files:
        shown = ", ".join(left_out.files[:_MAX_FILES])
        more = (
            f" and {len(left_out.files) - _MAX_FILES} more" if left_out.files[_MAX_FILES:] else ""
        )
        click.echo(f"left out files of other kinds: {shown}{more}", err=True)
    if left_out.merged:
        folders = ", ".join(f"{folder}/" for folder in left_out.merged)
        click.echo(
            f"the records of {folders} become one dataset; convert each folder separately to keep "
            "them apart",
            err=True,
        )
    for column in left_out.untyped[:_MAX_COLUMNS]:
        click.echo(str(column), err=True)
    if left_out.untyped[_MAX_COLUMNS:]:
        rest = len(left_out.untyped) - _MAX_COLUMNS
        click.echo(f"and {rest:,} more columns stay text because of a few values", err=True)
    if left_out.count:
        records = "record" if left_out.count == 1 else "records"
        click.echo(f"left out {left_out.count:,} {records}:", err=True)
        for refusal in left_out.first:
            click.echo(f"  {refusal}", err=True)
        if left_out.count > len(left_out.first):
            click.echo(f"  and {left_out.count - len(left_out.first):,} more", err=True)


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
