"""`headrace convert`: files to shards, with Spark where it takes Spark to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from headrace.cli._pairs import PAIR, parse_columns, parse_hashes, parse_shapes, parse_splits
from headrace.cli._show import size
from headrace.cli._types import SIZE
from headrace.errors import BadArgumentError

if TYPE_CHECKING:
    from headrace.converter import SourceFormat
    from headrace.storage import Manifest
    from headrace.storage.mds import Index

_FORMATS = (
    *("csv", "delta", "headrace", "huggingface", "images", "json"),
    *("mds", "orc", "parquet", "text", "webdataset"),
)
_SPARK_ALONE = {"csv", "json", "orc", "text"}
_EITHER = {"images", "parquet"}
_LOCAL = "local[*]"


@click.command(name="convert")
@click.argument("source", metavar="SRC")
@click.argument("url", metavar="DST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(_FORMATS),
    help="What SRC holds; told from its names if left out.",
)
@click.option(
    "--columns", help="Columns to keep, with commas between; OLD=NEW renames. Default: all."
)
@click.option(
    "--type",
    "types",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Cast a column, such as label=int32; a value that does not fit is an error.",
)
@click.option(
    "--shape",
    "shapes",
    type=PAIR,
    multiple=True,
    metavar="COLUMN=SHAPE",
    help="Sides of the tensor in an array column, such as image=28x28; or COLUMN=ragged.",
)
@click.option("--split", help="Fractions by name, such as train=0.9,val=0.1: DST/train, DST/val.")
@click.option("--split-by", metavar="COLUMN", help="The column that names each sample's split.")
@click.option(
    "--split-seed", type=int, default=0, show_default=True, help="Chooses samples for --split."
)
@click.option(
    "--shuffle-seed",
    type=int,
    help="Write in a random order, with Spark. Servers shuffle anyway as they serve.",
)
@click.option("--null-value", help="What stands for a null in CSV files, such as NA.")
@click.option(
    "--table-version", type=click.IntRange(min=0), help="Version of a Delta table; default newest."
)
@click.option("--allow-pickle", is_flag=True, help="Take pickled columns of MDS along, as bytes.")
@click.option(
    "--write",
    "written_as",
    type=click.Choice(["arrow", "mds"]),
    default="arrow",
    show_default=True,
    help="What to write: our own shards, or those of MosaicML Streaming.",
)
@click.option(
    "--compression",
    type=click.Choice(["lz4", "zstd", "none", "br", "bz2", "gz", "snappy"]),
    help="Of blocks: lz4 (default), zstd, none. Of MDS shards: none (default), or any but lz4.",
)
@click.option("--compression-level", type=int, help="As the compression has them.")
@click.option(
    "--hashes",
    help="Of each file of MDS, with commas between, such as sha256,xxh64; none takes none. "
    "Default: xxh3_64.",
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
    help="What to do where DST holds a dataset already.",
)
@click.option(
    "--master",
    help="Spark's master URL, where Spark reads SRC; default local[*]. If given, Spark reads "
    "Parquet and images, too.",
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
    null_value: str | None,
    table_version: int | None,
    allow_pickle: bool,
    written_as: Literal["arrow", "mds"],
    compression: str | None,
    compression_level: int | None,
    hashes: str | None,
    shard_bytes: int,
    block_bytes: int | None,
    mode: Literal["error", "overwrite", "append"],
    master: str | None,
    as_json: bool,
) -> None:
    """Convert what lies at SRC into a dataset at DST.

    SRC is a file or folder: CSV (with a header line), JSON (an object a line), ORC or text, which
    Spark reads and which need Java; or Parquet, a Delta table, images in folders named by their
    label, a MosaicML Streaming dataset, a folder of Hugging Face's save_to_disk, WebDataset tars,
    or a dataset of headrace, which need neither. SRC and DST are local paths or s3://BUCKET/PREFIX.

    \b
    headrace convert flights.csv s3://bucket/flights
    headrace convert photos/ /data/photos --split train=0.9,val=0.1
    headrace convert s3://bucket/mosaic s3://bucket/own --columns tokens,label=target

    Exit codes: 0 done; 1 it failed, and no dataset was written or changed; 2 the command line is
    wrong; 130 interrupted.
    """
    from headrace.cli._guess import guess_format  # noqa: PLC0415 - a command loads its layers

    found = file_format or guess_format(source)
    what = _What(
        url=url,
        settings={
            "columns": parse_columns(columns),
            "types": dict(types),
            "shapes": parse_shapes(shapes),
            "splits": parse_splits(split, split_by),
            "split_seed": split_seed,
            "format": written_as,
            "compression": compression,
            "compression_level": compression_level,
            "hashes": parse_hashes(hashes),
            "shard_bytes": shard_bytes,
            "block_bytes": block_bytes,
            "mode": mode,
        },
    )
    if _needs_spark(found, master=master, shuffle_seed=shuffle_seed):
        reading = _Reading(source, found, null_value, master or _LOCAL, verbose=bool(ctx.obj))
        written = _with_spark(reading, what, shuffle_seed)
    else:
        written = _without_spark(source, found, what, table_version, allow_pickle=allow_pickle)
    facts = {name: _facts(_place(url, name), part) for name, part in written.items()}
    if as_json:
        click.echo(json.dumps(facts.get("", {"url": url, "splits": facts})))
        return
    for fact in facts.values():
        click.echo(
            f"{fact['url']}: {fact['sample_count']:,} samples in {fact['shard_count']} shards, "
            f"{size(fact['raw_bytes'])} raw, {size(fact['stored_bytes'])} stored, "
            f"fingerprint {fact['fingerprint']}"
        )


@dataclass(frozen=True, slots=True)
class _What:
    """Where to write, and the options of `write_shards` and `convert_files` alike."""

    url: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What Spark reads, and which Spark."""

    source: str
    file_format: str
    null_value: str | None
    master: str
    verbose: bool


def _needs_spark(file_format: str, *, master: str | None, shuffle_seed: int | None) -> bool:
    if file_format in _SPARK_ALONE:
        return True
    wanted = master is not None or shuffle_seed is not None
    if wanted and file_format not in _EITHER:
        option = "--shuffle-seed" if master is None else "--master"
        raise BadArgumentError(
            f"{option} is for what Spark reads, and SRC is {file_format}, which it does not; leave "
            "it out (servers shuffle as they serve), or convert a Parquet copy",
            field=option.strip("-"),
        )
    return wanted


def _with_spark(
    reading: _Reading, what: _What, shuffle_seed: int | None
) -> dict[str, Manifest | Index]:
    from headrace.cli._progress import conversion_progress  # noqa: PLC0415
    from headrace.cli._spark import read_frame, start_spark  # noqa: PLC0415

    spark = start_spark(reading.master, verbose=reading.verbose)
    from headrace.converter import write_shards  # noqa: PLC0415 - needs the [converter] extra

    try:
        frame = read_frame(
            spark,
            reading.source,
            file_format=reading.file_format,
            null_value=reading.null_value,
        )
        with conversion_progress() as progress:
            written: Any = write_shards(
                frame, what.url, shuffle_seed=shuffle_seed, progress=progress, **what.settings
            )
    finally:
        spark.stop()
    return written if isinstance(written, dict) else {"": written}


def _without_spark(
    source: str, file_format: str, what: _What, table_version: int | None, *, allow_pickle: bool
) -> dict[str, Manifest | Index]:
    from headrace.cli._progress import conversion_progress  # noqa: PLC0415
    from headrace.converter import convert_files  # noqa: PLC0415 - needs the [converter] extra
    from headrace.storage import SourceOptions  # noqa: PLC0415

    with conversion_progress() as progress:
        return convert_files(
            source,
            what.url,
            source_format=cast("SourceFormat", file_format),
            source_options=SourceOptions(allow_pickle=allow_pickle, table_version=table_version),
            progress=progress,
            **what.settings,
        )


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
