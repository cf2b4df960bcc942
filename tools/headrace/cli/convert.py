"""`headrace convert`: convert files to shards, with Spark if only Spark can read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from headrace.cli.inputs.formats import FORMATS, detect_format
from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.options.pairs import parse_columns, parse_hashes, parse_shapes, parse_splits
from headrace.cli.options.types import FOLDER_URL, PAIR
from headrace.cli.show.texts import counted, size
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.converter import FilesLeftOut, SourceFormat, WriteOptions
    from headrace.converter.text import LeftOut, TextOptions
    from headrace.converter.text.options import TextKind
    from headrace.storage import Manifest, SourceOptions
    from headrace.storage.mds import Index

_ONLY_SPARK = {"orc"}
_TEXT = {"csv", "json", "text"}
_ALSO_SPARK = {"images", "parquet", *_TEXT}
_COMPRESSION = click.Choice(["lz4", "zstd", "none", "br", "bz2", "gz", "snappy"])
_Pairs = tuple[tuple[str, str], ...]
_MAX_FILES = 20  # names in a message
_MAX_COLUMNS = 20  # lines before the summary


def character(text: str) -> str:
    r"""Return a character of a command line, where a tab may be written as ``\t``."""
    return "\t" if text == r"\t" else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is converted, and how it is stored.

    Attributes:
        file_format: Format of SRC; detected from the names of its files if it is not given.
        columns: Columns to keep, separated by commas; OLD=NEW renames. All if it is not given.
        types: Cast a column, such as label=int32. A value that does not fit is an error.
        shapes: Tensor shape of an array column, such as image=28x28, or COLUMN=ragged.
        splits: Split by fractions, such as train=0.9,val=0.1, into DST/train and DST/val.
        split_by: Column that names the split of each sample.
        split_seed: Seed of --split.
        shuffle_seed: Store samples in random order, which needs as much temporary disk space as SRC
            has data. Rarely needed, since servers shuffle.
        spill_folder: Folder for the temporary data of --shuffle-seed, instead of the system's.
        label: Which of several nested folders names the class of an image: the first below SRC or
            its split, the last, or none.
        format_: Output format: headrace's shards, or those of MosaicML Streaming.
        hashes: Hashes to store for each MDS file, separated by commas, such as sha256,xxh64, or
            none; xxh3_64 if it is not given.
        mode: What to do if DST already holds a dataset.
        spark: Master URL of Spark. With it, Spark also reads CSV, JSON, text, Parquet and images.
            Without it, Spark reads only ORC, with local[*].
        as_json: Print one JSON object at the end.
    """

    file_format: str | None = field(default=None, metadata={"option": "--format"})
    columns: str | None = None
    types: _Pairs = field(default=(), metadata={"metavar": "COLUMN=TYPE"})
    shapes: _Pairs = field(default=(), metadata={"metavar": "COLUMN=SHAPE"})
    splits: str | None = field(default=None, metadata={"option": "--split"})
    split_by: str | None = field(default=None, metadata={"metavar": "COLUMN"})
    split_seed: int = 0
    shuffle_seed: int | None = None
    spill_folder: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    label: Literal["first", "last", "none"] | None = None
    format_: Literal["arrow", "mds"] = field(default="arrow", metadata={"option": "--write"})
    hashes: str | None = None
    mode: Literal["error", "overwrite", "append"] = "error"
    spark: str | None = field(default=None, metadata={"option": "--master"})
    as_json: bool = field(default=False, metadata={"option": "--json"})


@click.command(name="convert", cls=ObjectCommand)
@click.argument("source", metavar="SRC")
@click.argument("url", metavar="DST", type=FOLDER_URL)
@object_options(
    "headrace.cli.convert:Options",
    "options",
    types={
        "file_format": click.Choice(FORMATS),
        **dict.fromkeys(("types", "shapes"), PAIR),
        **dict.fromkeys(("split_seed", "shuffle_seed"), int),
    },
)
@object_options("headrace.converter.text:TextOptions", "text", types={"delimiter": character})
@object_options(
    "headrace.storage:SourceOptions", "source_options", leave=("source", "mixed_arrays", "index_of")
)
@object_options(
    "headrace.converter:WriteOptions",
    "write",
    leave=("types", "shapes", "formats", "classes", "hashes"),
    types={"compression": _COMPRESSION, "compression_level": int},
)
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
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
    left_out: list[LeftOut | FilesLeftOut] = []

    def report(found: LeftOut | FilesLeftOut) -> None:
        # Now, because the conversion may fail on account of what it leaves out.
        left_out.append(found)
        _print_left_out(found)

    job = _Job(report=report, **given)
    if _needs_spark(job.file_format, master=job.options.spark):
        written = _with_spark(job, job.options.spark or "local[*]", verbose=bool(ctx.obj))
    else:
        written = _without_spark(job)
    _print_result(job.url, written, left_out, as_json=job.options.as_json)


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


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What to convert, and how.

    Attributes:
        source: The place of the files.
        url: The place of the dataset.
        options: The options of the command.
        text: How to read CSV, JSON and text.
        source_options: How to read other files.
        write: How to write, but for what the options say.
        report: Called with what is left out.
    """

    source: str
    url: str
    options: Options
    text: TextOptions
    source_options: SourceOptions
    write: WriteOptions
    report: Callable[[LeftOut | FilesLeftOut], None]

    @cached_property
    def file_format(self) -> str:
        """The format of the files."""
        return self.options.file_format or detect_format(self.source)

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments that `write_shards` and `convert_files` share."""
        options = self.options
        shapes, hashes = parse_shapes(options.shapes), parse_hashes(options.hashes)
        return {
            "columns": parse_columns(options.columns),
            "splits": parse_splits(options.splits, options.split_by),
            "split_seed": options.split_seed,
            "shuffle_seed": options.shuffle_seed,
            "format": options.format_,
            "write": replace(self.write, types=dict(options.types), shapes=shapes, hashes=hashes),
            "mode": options.mode,
        }


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
    from headrace.converter import ImageOptions, convert_files  # noqa: PLC0415 - needs the [converter] extra

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
            source_options=job.source_options,
            images=ImageOptions(label=job.options.label, on_error=job.text.on_error),
            spill_folder=job.options.spill_folder,
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
