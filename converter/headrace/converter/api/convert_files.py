"""Convert the files in a folder or bucket, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from headrace.arguments import shown as argument_shown
from headrace.converter.api.arguments import (
    SourceFormat,
    check_means,
    check_place,
    check_reading,
    check_seeds,
    check_source,
    check_spill,
    check_splits,
    columns_of,
)
from headrace.converter.api.image_folders import Folder, open_folder, own_splits, write_folder
from headrace.converter.columns.type_names import named_type
from headrace.converter.images import FilesLeftOut, ImageOptions
from headrace.converter.local.convert_pieces import write_pieces
from headrace.converter.plan.plan import WantedConversion
from headrace.converter.plan.write_options import WriteOptions, write_options_of
from headrace.converter.progress.bar import shown
from headrace.converter.progress.progress import Progress
from headrace.converter.samples.splits import Splits
from headrace.converter.sources.hugging_face import find_splits, hugging_face_pieces
from headrace.converter.sources.pieces import SourcePieces, dataset_pieces
from headrace.converter.tasks.commit import Written
from headrace.converter.tasks.shard_task import split_url
from headrace.converter.tasks.sinks import Format
from headrace.converter.text import LeftOut, TextOptions, text_pieces
from headrace.converter.text.declared import read_types
from headrace.converter.text.options import TextKind
from headrace.converter.text.survey import default_threads
from headrace.errors import BadArgumentError, NotADatasetError
from headrace.storage import (
    Mode,
    SourceOptions,
    StoreOptions,
    options_with_environment,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SOURCES = {
    "delta": "parquet",
    "headrace": "arrow",
    "iceberg": "iceberg",
    "mds": "mds",
    "parquet": "parquet",
    "unity": "unity",
    "webdataset": "webdataset",
}


def convert_files(
    source: str,
    url: str,
    *,
    source_format: SourceFormat,
    source_options: SourceOptions | None = None,
    text: TextOptions | None = None,
    images: ImageOptions | None = None,
    left_out: Callable[[LeftOut | FilesLeftOut], None] | None = None,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    splits: Splits | None = None,
    split_seed: int = 0,
    format: Format = "arrow",  # noqa: A002 - as in write_shards
    write: WriteOptions | None = None,
    mode: Mode = "error",
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | Literal["bar"] | None = None,
    threads: int | None = None,
    spark: SparkSession | None = None,
    shuffle_seed: int | None = None,
    spill_folder: str | None = None,
    notice: Callable[[str], None] | None = None,
) -> dict[str, Written]:
    """Write the samples at ``source`` as a dataset at ``url``; needs neither Spark nor Java.

    Types are kept, including those that Spark lacks. Parts of ``source`` are converted in parallel
    on this machine; ``docs/convert.md`` describes how each format is converted.

    Args:
        source: A local path, or a URL such as ``s3://bucket/name``.
        url: Where the dataset is or will be; with splits, the folder of the datasets.
        source_format: Format of ``source``: ``mds`` (MosaicML Streaming), ``huggingface`` (a folder
            that ``save_to_disk`` wrote, also of a ``DatasetDict``), ``images`` (files, in folders
            of their classes and splits), ``parquet`` (files, a folder of them, partitions),
            ``delta``, ``iceberg`` and ``unity`` (tables by their names in catalogs),
            ``webdataset`` (tar files), ``csv``, ``json`` (objects) or ``text`` (lines), or
            ``headrace`` (a dataset of ours, to write it again).
        source_options: How to read the source.
        text: How to read CSV, JSON and text.
        images: How to read folders of images.
        left_out: Called with what is left out: for CSV, JSON and text once, before anything is
            written; for images at the end, also after a failure, once for each reason.
        columns: See `write_shards`.
        splits: See `write_shards`; not for a ``DatasetDict`` or a folder that has splits.
        split_seed: See `write_shards`.
        format: See `write_shards`.
        write: See `write_shards`; its class names are added to those of the source.
        mode: See `write_shards`.
        options: How to reach both stores; unset options are taken from the ``AWS_`` variables.
        progress: See `write_shards`.
        threads: Parts to convert in parallel; `None` for one per core, for text at most 8.
        spark: A session whose executors convert images; `None` to convert on this machine.
        shuffle_seed: Write the samples in a random order, which depends only on the seed and on
            the input; ``None`` keeps their order. Without ``spark`` it takes two passes, and
            temporary space on this machine's disk for all samples.
        spill_folder: The folder for this temporary space; `None` for the system's temporary folder.
        notice: Called with a sentence on the temporary space of a shuffle, before it starts, and
            with one on the column by which the samples are sorted, at the end; without ``spark``.

    Returns:
        The manifest (``mds``: the index) of each dataset, by split; ``""`` without splits.

    Raises:
        NotADatasetError: ``source`` has no data of that format.
        HeadraceError: See `write_shards`.

    Examples:
        >>> with open("flights.csv", "w") as file:
        ...     print("from,minutes", "EWR,227", "JFK,160", sep=chr(10), file=file)
        >>> written = convert_files("flights.csv", "flights", source_format="csv")
        >>> written[""].sample_count
        2
    """
    check_place(url, mode=mode)
    check_source(source, source_format, threads=threads)
    check_splits(splits)
    check_seeds(shuffle_seed=shuffle_seed, split_seed=split_seed)
    check_means(options=options, progress=progress, left_out=left_out, notice=notice)
    check_spill(spill_folder)
    check_reading(source_options=source_options, text=text, images=images)
    write = write_options_of(write)
    wanted = WantedConversion(
        columns=columns_of(columns),
        write=write,
        shuffle_seed=shuffle_seed,
        spill_folder=spill_folder,
        splits=splits,
        split_seed=split_seed,
        writing=write.writing(format),
        mode=mode,
        options=options_with_environment(options or StoreOptions()),
    )
    _check_spark(spark, source_format, images or ImageOptions())
    if source_format == "images":
        folder = open_folder(
            source,
            url,
            wanted=wanted,
            how=images or ImageOptions(),
            keeps_bytes=write.compression is None,
        )
        with _reporting_left_out(folder, left_out):
            return write_folder(
                folder, url, spark=spark, progress=progress, notice=notice, threads=threads
            )
    how = source_options or SourceOptions()
    parts: Mapping[str, SourcePieces]
    written: dict[str, Written] = {}
    with shown(progress) as tell, ExitStack() as opened:
        if source_format in {"csv", "json", "text"}:
            threads = threads or default_threads()
            pieces = _text(
                source,
                source_format,
                how=text or TextOptions(),
                wanted=wanted,
                left_out=left_out,
                threads=threads,
                progress=tell,
            )
            parts = {"": pieces}
        else:
            parts = _parts(source, source_format, how, wanted.options, opened)
        if splits is not None and "" not in parts:
            raise own_splits(source, list(parts))
        for name, pieces in parts.items():
            place = split_url(url, name)
            done = write_pieces(
                pieces, place, wanted=wanted, progress=tell, notice=notice, threads=threads
            )
            written |= {name or split: part for split, part in done.items()}
    return written


@contextmanager
def _reporting_left_out(
    folder: Folder, left_out: Callable[[FilesLeftOut], None] | None
) -> Iterator[None]:
    """Report at the end what was left out, also if the conversion fails."""
    try:
        yield
    finally:
        if left_out is not None:
            for what in folder.left_out:
                left_out(what)


def _text(
    source: str,
    kind: TextKind,
    *,
    how: TextOptions,
    wanted: WantedConversion,
    left_out: Callable[[LeftOut], None] | None,
    threads: int | None,
    progress: Callable[[Progress], None] | None,
) -> SourcePieces:
    pieces = text_pieces(
        source,
        kind,
        how=how,
        types=read_types(
            {name: named_type(text, column=name) for name, text in wanted.write.types.items()},
            wanted.columns,
        ),
        options=wanted.options,
        threads=threads,
        progress=progress,
    )
    if left_out is not None:
        left_out(pieces.left_out)
    return pieces


def _check_spark(
    spark: SparkSession | None, source_format: SourceFormat, how: ImageOptions
) -> None:
    if spark is not None and not hasattr(spark, "sparkContext") and not hasattr(spark, "range"):
        raise BadArgumentError(
            f"spark is {argument_shown(spark)}; expected a SparkSession, or None", field="spark"
        )
    if spark is not None and (source_format != "images" or how.on_error != "refuse"):
        raise BadArgumentError(
            f"spark is given for {source_format} with on_error={how.on_error!r}, but it reads "
            "only images, and on_error='refuse'; leave spark= out",
            field="spark",
        )


def _parts(
    source: str,
    source_format: SourceFormat,
    how: SourceOptions,
    reach: StoreOptions,
    opened: ExitStack,
) -> dict[str, SourcePieces]:
    if source_format != "huggingface":
        kind = replace(how, source=_SOURCES[source_format])
        pieces = dataset_pieces(source, options=reach, source_options=kind)
        return {"": opened.enter_context(pieces)}
    found = find_splits(source, options=reach)
    if not found:
        raise NotADatasetError(
            f"{source} contains no Hugging Face dataset: neither dataset_dict.json nor state.json "
            "with files in it; expected a folder written by save_to_disk",
            url=source,
        )
    return {name: hugging_face_pieces(at, options=reach) for name, at in found.items()}
