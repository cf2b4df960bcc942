"""`headrace convert`: convert files to shards, with Spark if only Spark can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from headrace.cli.inputs.formats import FORMATS, detect_format
from headrace.cli.options.objects import ObjectCommand, object_options, setting_options
from headrace.cli.options.pairs import PAIR, parse_columns, parse_hashes, parse_shapes, parse_splits
from headrace.cli.options.types import FOLDER_URL
from headrace.cli.show.texts import counted, size
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.converter import FilesLeftOut, SourceFormat
    from headrace.converter.text import LeftOut, TextOptions
    from headrace.converter.text.options import TextKind
    from headrace.storage import Manifest, SourceOptions
    from headrace.storage.mds import Index

_ONLY_SPARK = {"orc"}
_TEXT = {"csv", "json", "text"}
_ALSO_SPARK = {"images", "parquet", *_TEXT}
_COMPRESSION = click.Choice(["lz4", "zstd", "none", "br", "bz2", "gz", "snappy"])
_MAX_FILES = 20  # names in a message
_MAX_COLUMNS = 20  # lines before the summary


def character(text: str) -> str:
    r"""Return a character of a command line, where a tab may be written as ``\t``."""
    return "\t" if text == r"\t" else text


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
@object_options("headrace.converter.text:TextOptions", "text", types={"delimiter": character})
@click.option(
    "--label",
    type=click.Choice(["first", "last", "none"]),
    help="Which of several nested folders names the class of an image: the first below SRC or its "
    "split, the last, or none.",
)
@object_options(
    "headrace.storage:SourceOptions", "source_options", leave=("source", "mixed_arrays", "index_of")
)
@click.option(
    "--write",
    "format_",
    type=click.Choice(["arrow", "mds"]),
    default="arrow",
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
    text: TextOptions,
    label: Literal["first", "last", "none"] | None,
    source_options: SourceOptions,
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
    from headrace.converter import ImageOptions, WriteOptions  # noqa: PLC0415 - needs the [converter] extra

    found = file_format or detect_format(source)
    left_out: list[LeftOut | FilesLeftOut] = []

    def report(found: LeftOut | FilesLeftOut) -> None:
        # Now, because the conversion may fail on account of what it leaves out.
        left_out.append(found)
        _print_left_out(found)

    job = _Job(
        source=source,
        url=url,
        file_format=found,
        text=text,
        report=report,
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
        reading={
            "source_options": source_options,
            "images": ImageOptions(label=label, on_error=text.on_error),
            "spill_folder": spill_folder,
        },
    )
    if _needs_spark(found, master=spark):
        written = _with_spark(job, spark or "local[*]", verbose=bool(ctx.obj))
    else:
        written = _without_spark(job)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What to convert, and how.

    Attributes:
        source: The place of the files.
        url: The place of the dataset.
        file_format: The format of the files.
        text: How to read CSV, JSON and text.
        report: Called with what is left out.
        settings: The arguments that `write_shards` and `convert_files` share.
        reading: The arguments of `convert_files` alone.
    """

    source: str
    url: str
    file_format: str
    text: TextOptions
    report: Callable[[LeftOut | FilesLeftOut], None]
    settings: Mapping[str, Any]
    reading: Mapping[str, Any]


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


def _with_spark(job: _Job, master: str, *, verbose: bool) -> dict[str, Manifest | Index]:
    from headrace.cli.inputs.spark import read_frame, start_spark  # noqa: PLC0415

    spark = start_spark(master, verbose=verbose)
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415
    from headrace.converter import write_shards  # noqa: PLC0415 - needs the [converter] extra
    from headrace.converter.spark.text_rows import rows_on_spark  # noqa: PLC0415 - as above

    settings = job.settings
    try:
        if job.file_format == "images":
            return _without_spark(job, spark)
        with conversion_progress() as progress:
            if job.file_format in _TEXT:
                # Spark's own readers split fields at quoted line ends, do not distinguish empty
                # fields from "", and infer types that lose digits.
                kind = cast("TextKind", job.file_format)
                frame, settings, found = rows_on_spark(
                    spark, job.source, kind, how=job.text, settings=settings, progress=progress
                )
                job.report(found)
            else:
                frame = read_frame(spark, job.source, file_format=job.file_format)
            written: Any = write_shards(frame, job.url, progress=progress, **settings)
    finally:
        spark.stop()
    return written if isinstance(written, dict) else {"": written}


def _without_spark(job: _Job, spark: SparkSession | None = None) -> dict[str, Manifest | Index]:
    from headrace.cli.show.progress import conversion_progress  # noqa: PLC0415
    from headrace.converter import convert_files  # noqa: PLC0415 - needs the [converter] extra

    with conversion_progress() as progress:
        return convert_files(
            job.source,
            job.url,
            source_format=cast("SourceFormat", job.file_format),
            text=job.text,
            spark=spark,
            left_out=job.report,
            notice=lambda sentence: click.echo(sentence, err=True),
            progress=progress,
            **job.reading,
            **job.settings,
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
