"""Prepare the jobs that convert a folder of images: number classes, find splits, check targets.

Contract:

1. Invalid names and targets are refused before an image is read.
2. Splits with the same columns are one job, and are committed together when all are written. If
   some splits have labels and others do not, there are two jobs.
3. A class keeps its number: an append keeps the numbers of the dataset and adds new classes after
   them. If another append adds others in the meantime, the commit is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from headrace.converter.images import (
    FilesLeftOut,
    FolderPlan,
    ImageOptions,
    ImagePieces,
    SkippedFiles,
    image_pieces,
    list_files,
    plan_folder,
)
from headrace.converter.images.pieces import SPLIT_COLUMN
from headrace.converter.local.convert_pieces import write_pieces
from headrace.converter.plan.plan import WantedConversion
from headrace.converter.progress.bar import shown
from headrace.converter.progress.progress import Progress
from headrace.converter.sources.pieces import ReadPieces
from headrace.converter.tasks.commit import Written, check_target
from headrace.converter.tasks.shard_task import split_url
from headrace.errors import BadArgumentError, NotADatasetError, ObjectNotFoundError
from headrace.storage import classes_of, merged_classes, open_dataset, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder of images, ready to be converted.

    Attributes:
        plan: The plan of its datasets.
        jobs: What to read, and how to write it; the jobs run one after another.
        skipped: Collects the files that are not whole images, if they are left out.
    """

    plan: FolderPlan
    jobs: tuple[tuple[ImagePieces, WantedConversion], ...]
    skipped: SkippedFiles | None

    @property
    def left_out(self) -> tuple[FilesLeftOut, ...]:
        """Return the files that are in no dataset; complete when the jobs have run."""
        return (*self.plan.left_out, *(self.skipped.left_out if self.skipped else ()))


def open_folder(
    source: str,
    url: str,
    *,
    wanted: WantedConversion,
    how: ImageOptions,
    keeps_bytes: bool = False,
) -> Folder:
    """List a folder of images and plan its datasets, reading only names and sizes.

    Args:
        source: The folder.
        url: The URL of the dataset, or of the folder of its splits.
        wanted: The requested conversion.
        how: How to read the images.
        keeps_bytes: Whether to store images in compressed formats without compressing them again.

    Raises:
        BadArgumentError: The names are ambiguous, or there is nothing to convert.
        DatasetExistsError: The mode is ``error`` and there is a dataset.
    """
    listing = list_files(source, options=wanted.options)
    plan = plan_folder(listing, place=source, how=how)
    has_splits = "" not in plan.splits
    if has_splits and wanted.splits is not None:
        raise own_splits(source, list(plan.splits))
    targets = list(plan.splits) if has_splits else _targets(wanted)
    _check_targets(url, targets, wanted)
    if wanted.mode == "append" and plan.classes:
        known = _known_classes(url, targets, wanted)
        plan = plan_folder(listing, place=source, known=known, how=how)
    skipped = SkippedFiles() if how.on_error == "skip" else None
    pieces = image_pieces(source, plan, options=wanted.options, skipped=skipped)
    chosen = _with_split_column(wanted) if has_splits else wanted
    jobs = tuple((each, _adapted(chosen, each) if keeps_bytes else chosen) for each in pieces)
    return Folder(plan, jobs, skipped)


def write_folder(
    folder: Folder,
    url: str,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[Progress], None] | Literal["bar"] | None = None,
    notice: Callable[[str], None] | None = None,
    threads: int | None = None,
) -> dict[str, Written]:
    """Run the jobs of a folder.

    Args:
        folder: The result of `open_folder`.
        url: See `open_folder`.
        spark: A session whose executors run the jobs; `None` for this machine.
        progress: See `convert_files`.
        notice: See `convert_files`.
        threads: See `convert_files`; not with ``spark``.

    Returns:
        The written datasets by split; ``""`` without splits.

    Raises:
        HeadraceError: See `write_shards`.
    """
    written: dict[str, Written] = {}
    for pieces, wanted in folder.jobs:
        if spark is None:
            with shown(progress) as tell:
                done = write_pieces(
                    pieces, url, wanted=wanted, progress=tell, notice=notice, threads=threads
                )
        else:
            done = _write_with_spark(spark, pieces, url, wanted, progress)
        written |= done
    return written


def _write_with_spark(
    spark: SparkSession,
    pieces: ImagePieces,
    url: str,
    wanted: WantedConversion,
    progress: Callable[[Progress], None] | Literal["bar"] | None,
) -> dict[str, Written]:
    from headrace.converter.api.write_shards import write_rows  # noqa: PLC0415 - needs Spark

    kinds = {pa.binary(): "binary", pa.int64(): "bigint", pa.string(): "string"}
    columns = ", ".join(f"{field.name} {kinds[field.type]}" for field in pieces.schema)
    numbers = spark.range(0, pieces.count, 1, pieces.count)
    frame = numbers.mapInArrow(ReadPieces(pieces), columns)
    names = {field.name: classes_of(field) for field in pieces.schema}
    stored = _stored_names(wanted, pieces.schema.names)
    classes = {stored[old]: found for old, found in names.items() if found and old in stored}
    write = replace(wanted.write, classes={**classes, **wanted.write.classes})
    return write_rows(frame, url, wanted=replace(wanted, write=write), progress=progress)


def _stored_names(wanted: WantedConversion, names: Sequence[str]) -> Mapping[str, str]:
    """Return the names of columns in the dataset, by their names in the source."""
    columns = names if wanted.columns is None else wanted.columns
    return columns if isinstance(columns, Mapping) else {name: name for name in columns}


def _adapted(wanted: WantedConversion, pieces: ImagePieces) -> WantedConversion:
    if wanted.writing.format == "arrow" and pieces.is_compressed:
        return replace(wanted, writing=replace(wanted.writing, compression="none"))
    return wanted


def own_splits(source: str, names: Sequence[str]) -> BadArgumentError:
    """Return the error for requested splits of a folder that has splits."""
    return BadArgumentError(
        f"{source} already has splits, {', '.join(names)}; convert it without splits=, or convert "
        f"one of them: {source.rstrip('/')}/{names[0]}",
        field="splits",
    )


def _targets(wanted: WantedConversion) -> list[str]:
    """Return the splits whose datasets are known before the job; ``""`` for a single dataset."""
    if wanted.splits is None:
        return [""]
    return [] if isinstance(wanted.splits, str) else list(wanted.splits)


def _check_targets(url: str, targets: Sequence[str], wanted: WantedConversion) -> None:
    for split in targets:
        with contextlib.closing(open_store(split_url(url, split), options=wanted.options)) as store:
            check_target(store, wanted.mode, wanted.writing.format)


def _known_classes(url: str, targets: Sequence[str], wanted: WantedConversion) -> tuple[str, ...]:
    """Return the classes of the datasets to append to, which must be compatible."""
    if wanted.writing.format == "mds":
        raise BadArgumentError(
            "format='mds' stores no class names, so the meaning of the numbers in the dataset to "
            "append to is unknown; expected mode='overwrite', label='none', or format='arrow'",
            field="mode",
        )
    known: tuple[str, ...] = ()
    for split in targets:
        place = split_url(url, split)
        found = _classes_at(place, wanted)
        known = merged_classes(known, found, column="label", place=place)
    return known


def _classes_at(place: str, wanted: WantedConversion) -> tuple[str, ...]:
    column = _stored_names(wanted, ["label"]).get("label", "label")
    try:
        with open_dataset(place, options=wanted.options) as dataset:
            at = dataset.schema.get_field_index(column)
            names = classes_of(dataset.schema.field(at)) if at >= 0 else None
            kind = str(dataset.schema.field(at).type) if at >= 0 else "missing"
    except (NotADatasetError, ObjectNotFoundError):
        return ()
    if names is None:
        raise BadArgumentError(
            f"column {column!r} of the dataset {place} is {kind} and has no class names, so class "
            "numbers cannot be appended; write a new dataset",
            field="mode",
        )
    return names


def _with_split_column(wanted: WantedConversion) -> WantedConversion:
    """Include the column that names the splits, even if other columns are chosen."""
    columns = wanted.columns
    if isinstance(columns, Mapping):
        columns = {**columns, SPLIT_COLUMN: SPLIT_COLUMN}
    elif columns is not None:
        columns = [*columns, SPLIT_COLUMN]
    return replace(wanted, columns=columns, splits=SPLIT_COLUMN)
