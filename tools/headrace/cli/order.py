"""`headrace order`: print the samples that a rank gets at a step, from manifests alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
from numpy.typing import NDArray

from headrace.cli.options.objects import ObjectCommand, field_options
from headrace.cli.options.shared import (
    end_option,
    missing_as_null_option,
    order_options,
    rank_option,
    utf8_text,
    world_size_option,
)
from headrace.cli.options.types import PICTURE, WEIGHTED_URL
from headrace.cli.show.charts import draw_deal
from headrace.cli.stored.composition import groups_of
from headrace.cli.stored.mesh_picture import mesh_lines, mesh_of, mesh_ranks
from headrace.cli.stored.shard_tables import read_tables
from headrace.client import Order
from headrace.errors import TokenDatasetChangedError
from headrace.order import (
    AnyOrder,
    Batching,
    EndMode,
    EpochPlan,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    RankBatch,
    SequenceLayout,
    SubsetMixtureOrder,
    SubsetOrder,
    batch_sample_ids,
    dump_mixture,
    find_rows,
    load_mixture,
)

_WeightedUrl = tuple[str, float | None]
_Ids = list[int] | list[str]
_Array = NDArray[np.int64]
_MAX_GROUPS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is printed of which order.

    Attributes:
        batching: How batches of a mixture are composed.
        epoch: First epoch of the run; --find searches this epoch.
        step: First step to show, counted from the beginning of the run across its epochs, as in
            `headrace read`.
        batches: Number of batches to show.
        mixture: JSON file with a mixture of the datasets at the URLs: repeat, choose, schedules.
        print_mixture: Print the mixture as JSON instead, to edit and pass to --mixture.
        wheres: Only the samples for which this is true. The columns that it names are read. For
            several URLs, give one for each; '' keeps all samples.
        wanted: Print the positions of these samples in the epoch, on all ranks, instead of batches.
        as_json: Print one JSON object per batch, or per position found.
        mesh: Print what each rank of a mesh gets instead, such as dp=2,cp=2,tp=2, the slowest axis
            first.
        sequence: Elements of a sequence, of which ranks along cp get parts.
        layout: How sequences are divided.
        picture: Plot the batch of --step as PNG or SVG: the samples of each rank, by their eighth
            of the storage, or by their dataset.
        dark: Draw the picture on a dark background.
    """

    specs: tuple[_WeightedUrl, ...]
    global_batch_size: int
    rank: int
    world_size: int
    seed: int
    shuffle: bool
    order: Order
    end: str
    missing_as_null: bool
    batching: Literal["random", "stratified", "per_dataset"] = "random"
    epoch: int = 0
    step: int = 0
    batches: int = 1
    mixture: Path | None = None
    print_mixture: bool = field(default=False, metadata={"option": "--print-mixture"})
    wheres: tuple[str, ...] = field(default=(), metadata={"metavar": "EXPR"})
    wanted: str | None = field(default=None, metadata={"option": "--find", "metavar": "ID[,ID...]"})
    as_json: bool = field(default=False, metadata={"option": "--json"})
    mesh: str = field(default="", metadata={"metavar": "AXIS=SIZE[,...]"})
    sequence: int | None = None
    layout: Literal["contiguous", "zigzag"] = "zigzag"
    picture: Path | None = None
    dark: bool = False


@click.command(name="order", cls=ObjectCommand)
@click.argument("specs", metavar="URL[=WEIGHT]...", nargs=-1, required=True, type=WEIGHTED_URL)
@click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    required=True,
    help="Samples per batch over all ranks.",
)
@rank_option
@world_size_option
@end_option
@order_options(leave=("buckets",))
@field_options(
    "headrace.cli.order:Options",
    types={
        "batches": click.IntRange(min=1),
        "picture": PICTURE,
        "mixture": click.Path(exists=True, dir_okay=False, path_type=Path),
    },
)
@missing_as_null_option
def command(**given: Any) -> None:
    """Print the samples that a rank gets at a step, without a server.

    The command reads only manifests, so any step of any epoch takes the same time. Several URLs
    make a mixture, with WEIGHT as the proportion of a dataset. The ids of a mixture are printed as
    DATASET:ID, with datasets counted from 0.

    \b
    headrace order s3://bucket/flights --global-batch-size 256 --step 1000 --rank 3 --world-size 8
    headrace order s3://bucket/web=0.7 s3://bucket/books=0.3 --global-batch-size 256
    headrace order s3://bucket/flights --global-batch-size 256 --world-size 8 --find 17,90210
    headrace order s3://bucket/flights --global-batch-size 8 --mesh dp=2,cp=2,tp=2 --sequence 4096
    """
    options = Options(**given)
    opened = _open_order(options)
    if options.print_mixture:
        if not isinstance(opened, MixtureOrder | SubsetMixtureOrder):
            raise click.UsageError("--print-mixture needs several datasets.")
        click.echo(dump_mixture(opened.spec))
        return
    plan = EpochPlan(
        sample_count=opened.sample_count,
        base=0,
        global_batch_size=options.global_batch_size,
        end=EndMode(options.end),
    )
    if options.picture is not None:
        _draw(opened, plan, options, options.picture)
    lines = _batch_lines if options.wanted is None else _position_lines
    if options.mesh:
        lines = _mesh_lines
    for line in lines(opened, plan, options):
        click.echo(line)


def _batch_lines(order: AnyOrder, plan: EpochPlan, options: Options) -> Iterator[str]:
    if not plan.batch_count:
        raise click.UsageError(
            f"an epoch of {order.sample_count} samples has no batch of "
            f"{options.global_batch_size}; use a smaller --global-batch-size, or --end uneven."
        )
    format_line = _json_line if options.as_json else _text_line
    for at in range(options.step, options.step + options.batches):
        later, index = divmod(at, plan.batch_count)
        batch = plan.batch(index, rank=options.rank, world_size=options.world_size)
        ids = _ids(order, options.epoch + later, batch)
        yield format_line(options.epoch + later, at, batch, ids)


def _mesh_lines(order: AnyOrder, plan: EpochPlan, options: Options) -> Iterator[str]:
    if options.step >= plan.batch_count:
        raise click.UsageError(f"--step: an epoch has {plan.batch_count} steps; expected less.")
    return mesh_lines(
        mesh_of(options.mesh),
        lambda part, parts: plan.batch(options.step, rank=part, world_size=parts),
        lambda batch: _ids(order, options.epoch, batch),
        length=options.sequence,
        layout=SequenceLayout(options.layout),
    )


def _draw(order: AnyOrder, plan: EpochPlan, options: Options, picture: Path) -> None:
    """Draw what each rank gets of the batch of a step, by parts of the storage or datasets."""
    later, index = divmod(options.step, max(plan.batch_count, 1))
    mesh = mesh_of(options.mesh or f"dp={options.world_size}")
    names, group_of = _groups(order)
    parts = []
    for number, (rank, _) in enumerate(mesh_ranks(mesh, length=None)):
        part, of = rank.data
        batch = plan.batch(index, rank=part, world_size=of)
        parts.append(
            (f"rank {number}", group_of(batch_sample_ids(order, options.epoch + later, batch)))
        )
    title = f"step {options.step:,} of epoch {options.epoch + later}"
    draw_deal(picture, parts, names, title=title, is_dark=options.dark)


def _groups(order: AnyOrder) -> tuple[Sequence[str], Callable[[_Array], _Array]]:
    """Return the names of what samples are grouped by in a picture, and the group of each id."""
    if isinstance(order, MixtureOrder | SubsetMixtureOrder):
        firsts, datasets = order.first_ids, order.spec.datasets[:_MAX_GROUPS]
        return (
            [one.name.rstrip("/").rpartition("/")[2] for one in datasets],
            lambda ids: np.minimum(firsts.searchsorted(ids, "right") - 1, _MAX_GROUPS - 1),
        )
    whole = order.kept if isinstance(order, SubsetOrder) else order
    groups = groups_of(None, None, whole.sample_count)
    return groups.names, groups.of


def _position_lines(order: AnyOrder, plan: EpochPlan, options: Options) -> Iterator[str]:
    """Yield a line for each position of the samples, and for each sample without a position."""
    names, epoch = (options.wanted or "").split(","), options.epoch
    found = order.find_each(epoch, _sample_ids(order, names))
    for name, positions in zip(names, found, strict=True):
        rows = [
            (position, row)
            for position in positions.tolist()
            for row in find_rows(plan, position, world_size=options.world_size)
        ]
        for position, row in rows:
            place = {"step": row.index, "rank": row.rank, "row": row.row, "position": position}
            if options.as_json:
                yield json.dumps({"id": name, "epoch": epoch, **place})
            else:
                at = "  ".join(f"{key} {value}" for key, value in place.items())
                yield f"id {name}  epoch {epoch}  {at}"
        if not rows and not options.as_json:
            yield f"id {name}  epoch {epoch}  not in the epoch: dropped, filtered out or not drawn"


def _sample_ids(order: AnyOrder, names: Sequence[str]) -> NDArray[np.int64]:
    """Return the ids in the order of sample ids in the printed form."""
    is_mixture = isinstance(order, MixtureOrder | SubsetMixtureOrder)
    pattern = r"(\d+):(\d+)" if is_mixture else r"()(\d+)"
    matches = [re.fullmatch(pattern, name.strip()) for name in names]
    for name, match in zip(names, matches, strict=True):
        if match is None:
            form = "DATASET:ID, datasets counted from 0" if is_mixture else "a number"
            raise click.UsageError(f"--find: {name!r} is not a sample id; expected {form}.")
    pairs = [(int(match[1] or 0), int(match[2])) for match in matches if match is not None]
    if isinstance(order, MixtureOrder | SubsetMixtureOrder):
        firsts = order.first_ids.tolist()
    else:
        whole = order.kept if isinstance(order, SubsetOrder) else order
        firsts = [0, whole.sample_count]
    for dataset, sample in pairs:
        count = firsts[dataset + 1] - firsts[dataset] if dataset + 1 < len(firsts) else 0
        if sample >= count:
            raise click.UsageError(
                f"--find: dataset {dataset} has {count} samples, and no sample {sample}."
            )
    return np.array([firsts[dataset] + sample for dataset, sample in pairs], np.int64)


def _json_line(epoch: int, step: int, batch: RankBatch, ids: _Ids) -> str:
    return json.dumps({"epoch": epoch, "step": step, "position": batch.position, "ids": ids})


def _text_line(epoch: int, step: int, batch: RankBatch, ids: _Ids) -> str:
    return (
        f"epoch {epoch}  step {step}  position {batch.position}  samples {len(ids)}  "
        f"ids {','.join(map(str, ids))}"
    )


def _open_order(options: Options) -> AnyOrder:
    specs, wheres, path = options.specs, options.wheres, options.mixture
    mixture = None
    if path is not None:
        text = utf8_text(lambda: path.read_text(encoding="utf-8"), option="--mixture")
        mixture = load_mixture(text)
    if wheres and len(wheres) != len(specs):
        raise click.UsageError(
            f"--where: {len(wheres)} expressions for {len(specs)} URLs; expected one for each, "
            "'' for no filter."
        )
    urls = [url for url, _ in specs]
    tables = read_tables(urls, wheres, missing_as_null=options.missing_as_null)
    if mixture is not None:
        _check_fingerprints(mixture, tables.fingerprints)
        return tables.mixture(mixture)
    spec = options.order.spec(
        seed=options.seed, shuffle=options.shuffle, unit=options.global_batch_size
    )
    if len(specs) == 1:
        return tables.order(spec)
    datasets = tuple(
        MixtureDataset(url, fingerprint, proportion=weight)
        for (url, weight), fingerprint in zip(specs, tables.fingerprints, strict=True)
    )
    return tables.mixture(MixtureSpec(datasets, order=spec, batching=Batching(options.batching)))


def _check_fingerprints(mixture: MixtureSpec, found: Sequence[str]) -> None:
    wanted = [dataset.fingerprint for dataset in mixture.datasets]
    if len(wanted) != len(found):
        raise click.UsageError(
            f"--mixture has {len(wanted)} datasets, but {len(found)} URLs are given."
        )
    for dataset, fingerprint in zip(mixture.datasets, found, strict=True):
        if dataset.fingerprint != fingerprint:
            raise TokenDatasetChangedError(
                f"dataset {dataset.name!r} of the mixture has fingerprint {dataset.fingerprint}, "
                f"but its URL has {fingerprint}: give the URLs in the mixture's order, or the "
                "version that the mixture was made for"
            )


def _ids(order: AnyOrder, epoch: int, batch: RankBatch) -> _Ids:

    ids = batch_sample_ids(order, epoch, batch)
    if not isinstance(order, MixtureOrder | SubsetMixtureOrder):
        return [int(sample) for sample in ids.tolist()]
    datasets = order.first_ids.searchsorted(ids, side="right") - 1
    own = ids - order.first_ids[datasets]
    return [f"{d}:{s}" for d, s in zip(datasets.tolist(), own.tolist(), strict=True)]
