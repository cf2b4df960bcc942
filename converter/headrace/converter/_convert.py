"""Convert what lies in a folder or bucket, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headrace.converter._commit import Written
from headrace.converter._folder import open_folder, own_splits, write_folder
from headrace.converter._hugging_face import find_splits, hugging_face_pieces
from headrace.converter._local import write_pieces
from headrace.converter._pieces import Pieces, dataset_pieces
from headrace.converter._plan import DEFAULT_SHARD_BYTES, Wanted, checked_writing
from headrace.converter._progress import Progress
from headrace.converter._schema import Declared, Shape
from headrace.converter._show import shown
from headrace.converter._sinks import Format
from headrace.converter._splits import Splits
from headrace.converter._tasks import split_url
from headrace.converter._type_names import named_type
from headrace.converter.images import FilesLeftOut, ImageOptions
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

SourceFormat = Literal[
    "csv",
    "delta",
    "headrace",
    "huggingface",
    "images",
    "json",
    "mds",
    "parquet",
    "text",
    "webdataset",
]

_SOURCES = {
    "delta": "parquet",
    "headrace": "arrow",
    "mds": "mds",
    "parquet": "parquet",
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
    types: Mapping[str, str | pa.DataType] | None = None,
    shapes: Mapping[str, Shape] | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    splits: Splits | None = None,
    split_seed: int = 0,
    format: Format = "arrow",  # noqa: A002 - as in write_shards
    compression: str | None = None,
    compression_level: int | None = None,
    hashes: Sequence[str] | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    block_bytes: int | None = None,
    mode: Mode = "error",
    options: StoreOptions | None = None,
    progress: Callable[[Progress], None] | Literal["bar"] | None = None,
    threads: int | None = None,
    spark: SparkSession | None = None,
    shuffle_seed: int | None = None,
) -> dict[str, Written]:
    """Write the samples at ``source`` as a dataset at ``url``; needs neither Spark nor Java.

    Types are kept as they are, also those that Spark lacks. Parts of ``source`` are converted side
    by side on this machine; ``docs/convert.md`` says what each format becomes.

    Args:
        source: A local path, or a URL such as ``s3://bucket/name``.
        url: Where the dataset is or will be; with splits, the folder of the datasets.
        source_format: What lies there: ``mds`` (MosaicML Streaming), ``huggingface`` (a folder
            that ``save_to_disk`` wrote, also of a ``DatasetDict``), ``images`` (files, in folders
            of their classes and splits), ``parquet`` (files, a folder of them, partitions),
            ``delta``, ``webdataset`` (tar files), ``csv``, ``json`` (objects) or ``text``
            (lines), or ``headrace`` (a dataset of ours, to write it again).
        source_options: How it is read.
        text: How CSV, JSON and text are read.
        images: How folders of images are read.
        left_out: Called once with what is not read of CSV, JSON and text, before anything is
            written; of images at the end, also of a failure, once for each reason.
        columns: As for `write_shards`.
        types: As for `write_shards`.
        shapes: As for `write_shards`.
        classes: As for `write_shards`, beside those that the source notes.
        splits: As for `write_shards`; not for a ``DatasetDict`` or a folder that has splits.
        split_seed: As for `write_shards`.
        format: As for `write_shards`.
        compression: As for `write_shards`; the default of images is ``none`` where their own
            formats compress.
        compression_level: As for `write_shards`.
        hashes: As for `write_shards`.
        shard_bytes: As for `write_shards`.
        block_bytes: As for `write_shards`.
        mode: As for `write_shards`.
        options: How to reach both stores; what is not set is taken from the ``AWS_`` variables.
        progress: As for `write_shards`.
        threads: Parts to convert side by side; `None` is one a core, of text at most 8.
        spark: A session whose executors convert images; `None` does it on this machine.
        shuffle_seed: As for `write_shards`; only with ``spark``.

    Returns:
        The manifest (``mds``: the index) of what was written, by split; ``""`` without splits.

    Raises:
        NotADatasetError: ``source`` holds nothing of that format.
        HeadraceError: As `write_shards`.
    """
    wanted = Wanted(
        columns=columns,
        declared=Declared(shapes=shapes or {}, types=types or {}, classes=classes or {}),
        shuffle_seed=shuffle_seed,
        splits=splits,
        split_seed=split_seed,
        writing=checked_writing(
            format,
            compression,
            level=compression_level,
            hashes=hashes,
            shard_bytes=shard_bytes,
            block_bytes=block_bytes,
        ),
        mode=mode,
        options=options_with_environment(options or StoreOptions()),
    )
    _check_spark(spark, source_format, images or ImageOptions(), shuffle_seed)
    if source_format == "images":
        folder = open_folder(
            source,
            url,
            wanted=wanted,
            how=images or ImageOptions(),
            keeps_bytes=compression is None,
        )
        try:
            return write_folder(folder, url, spark=spark, progress=progress, threads=threads)
        finally:
            if left_out is not None:
                for what in folder.left_out:
                    left_out(what)
    how = source_options or SourceOptions()
    parts: Mapping[str, Pieces]
    if source_format in {"csv", "json", "text"}:
        threads = threads or default_threads()
        pieces = _text(
            source,
            source_format,
            how=text or TextOptions(),
            wanted=wanted,
            left_out=left_out,
            threads=threads,
        )
        parts = {"": pieces}
    else:
        parts = _parts(source, source_format, how, wanted.options)
    if splits is not None and "" not in parts:
        raise own_splits(source, list(parts))
    written: dict[str, Written] = {}
    with shown(progress) as tell:
        for name, pieces in parts.items():
            place = split_url(url, name)
            done = write_pieces(pieces, place, wanted=wanted, progress=tell, threads=threads)
            written |= {name or split: part for split, part in done.items()}
    return written


def _text(
    source: str,
    kind: TextKind,
    *,
    how: TextOptions,
    wanted: Wanted,
    left_out: Callable[[LeftOut], None] | None,
    threads: int | None,
) -> Pieces:
    pieces = text_pieces(
        source,
        kind,
        how=how,
        types=read_types(
            {name: named_type(text, column=name) for name, text in wanted.declared.types.items()},
            wanted.columns,
        ),
        options=wanted.options,
        threads=threads,
    )
    if left_out is not None:
        left_out(pieces.left_out)
    return pieces


def _check_spark(
    spark: SparkSession | None,
    source_format: SourceFormat,
    how: ImageOptions,
    shuffle_seed: int | None,
) -> None:
    if spark is None and shuffle_seed is not None:
        raise BadArgumentError(
            f"shuffle_seed is {shuffle_seed} and there is no spark, which shuffles; leave it out "
            "(servers shuffle as they serve), or give a session",
            field="shuffle_seed",
        )
    if spark is not None and (source_format != "images" or how.on_error != "refuse"):
        raise BadArgumentError(
            f"spark is given for {source_format} with on_error={how.on_error!r}; wanted images and "
            "'refuse', or no spark (on the command line: no --master and no --shuffle-seed)",
            field="spark",
        )


def _parts(
    source: str, source_format: SourceFormat, how: SourceOptions, reach: StoreOptions
) -> dict[str, Pieces]:
    if source_format != "huggingface":
        kind = SourceOptions(
            source=_SOURCES[source_format],
            allow_pickle=how.allow_pickle,
            table_version=how.table_version,
        )
        return {"": dataset_pieces(source, options=reach, source_options=kind)}
    found = find_splits(source, options=reach)
    if not found:
        raise NotADatasetError(
            f"{source} holds no dataset of Hugging Face: neither dataset_dict.json nor state.json "
            "with files in it; wanted a folder that save_to_disk wrote",
            url=source,
        )
    return {name: hugging_face_pieces(at, options=reach) for name, at in found.items()}
