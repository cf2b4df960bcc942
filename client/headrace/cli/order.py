"""`headrace order`: what any rank gets at any step, from manifests alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli._options import order_options, rank_options
from headrace.cli._tables import read_tables
from headrace.cli._types import WEIGHTED_URL
from headrace.errors import TokenDatasetChangedError

if TYPE_CHECKING:
    from headrace.order import MixtureOrder, MixtureSpec, Order, OrderSpec, RankBatch

Weighted = tuple[str, float | None]


@click.command(name="order")
@click.argument("specs", metavar="URL[=WEIGHT]...", nargs=-1, required=True, type=WEIGHTED_URL)
@click.option(
    "--global-batch-size",
    type=click.IntRange(min=1),
    required=True,
    help="Samples of a batch over all ranks.",
)
@rank_options
@order_options
@click.option(
    "--lanes", type=click.IntRange(min=1), default=1, show_default=True, help="Parts of the data."
)
@click.option(
    "--batching",
    type=click.Choice(["random", "stratified", "per_dataset"]),
    default="random",
    show_default=True,
    help="How batches of a mixture are composed.",
)
@click.option("--epoch", type=click.IntRange(min=0), default=0, show_default=True, help="Epoch.")
@click.option(
    "--step",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="First batch to show, counted from the begin of the epoch.",
)
@click.option(
    "--batches", type=click.IntRange(min=1), default=1, show_default=True, help="How many to show."
)
@click.option(
    "--mixture",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of a mixture as JSON (repeat, choose, schedules); its datasets lie at the URLs.",
)
@click.option(
    "--print-mixture",
    is_flag=True,
    help="Print the mixture as JSON instead, to be changed and given to --mixture.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a batch.")
def command(
    *,
    specs: tuple[Weighted, ...],
    global_batch_size: int,
    rank: int,
    world_size: int,
    replication: int,
    seed: int,
    shuffle: bool,
    window: int | None,
    lanes: int,
    batching: str,
    end: str,
    epoch: int,
    step: int,
    batches: int,
    mixture: Path | None,
    print_mixture: bool,
    as_json: bool,
) -> None:
    """Print the sample ids that a rank gets at a step, with no server.

    Reads manifests alone, so any step of any epoch is there at once. Several URLs make a mixture;
    WEIGHT is a dataset's proportion, and ids are then printed as DATASET:ID, datasets counted
    from 0.

    \b
    headrace order s3://bucket/flights --global-batch-size 256 --step 1000 --rank 3 --world-size 8
    headrace order s3://bucket/web=0.7 s3://bucket/books=0.3 --global-batch-size 256
    """
    from headrace.order import (  # noqa: PLC0415 - a command loads its layers when it is called
        DEFAULT_WINDOW,
        EndMode,
        EpochPlan,
        MixtureOrder,
        OrderSpec,
        dump_mixture,
    )

    spec = OrderSpec(
        seed=seed,
        shuffle=shuffle,
        window=DEFAULT_WINDOW if window is None else window,
        lanes=lanes,
        unit=global_batch_size,
    )
    text = None if mixture is None else mixture.read_text()
    order = _open_order(specs, spec, batching=batching, mixture=text)
    if print_mixture:
        if not isinstance(order, MixtureOrder):
            raise click.UsageError("--print-mixture: one dataset is no mixture.")
        click.echo(dump_mixture(order.spec))
        return
    plan = EpochPlan(
        sample_count=order.sample_count,
        base=0,
        global_batch_size=global_batch_size,
        end=EndMode(end),
    )
    if step >= plan.batch_count:
        raise click.UsageError(f"--step: the epoch has {plan.batch_count} batches, from 0 on.")
    show = _json_line if as_json else _text_line
    for index in range(step, min(step + batches, plan.batch_count)):
        batch = plan.batch(index, rank=rank, world_size=world_size, replication=replication)
        click.echo(show(epoch, batch, _ids(order, epoch, batch)))


Ids = list[int] | list[str]


def _json_line(epoch: int, batch: RankBatch, ids: Ids) -> str:
    return json.dumps({"epoch": epoch, "step": batch.index, "position": batch.position, "ids": ids})


def _text_line(epoch: int, batch: RankBatch, ids: Ids) -> str:
    return (
        f"epoch {epoch}  step {batch.index}  position {batch.position}  samples {len(ids)}  "
        f"ids {','.join(map(str, ids))}"
    )


def _open_order(
    specs: Sequence[Weighted], spec: OrderSpec, *, batching: str, mixture: str | None
) -> Order | MixtureOrder:
    from headrace.order import (  # noqa: PLC0415
        Batching,
        MixtureDataset,
        MixtureOrder,
        MixtureSpec,
        Order,
        load_mixture,
    )

    tables, fingerprints = read_tables([url for url, _ in specs])
    if mixture is not None:
        loaded = load_mixture(mixture)
        _check_fingerprints(loaded, fingerprints)
        return MixtureOrder(loaded, tables)
    if len(specs) == 1:
        return Order(spec, tables[0])
    datasets = tuple(
        MixtureDataset(url, fingerprint, proportion=weight)
        for (url, weight), fingerprint in zip(specs, fingerprints, strict=True)
    )
    return MixtureOrder(MixtureSpec(datasets, order=spec, batching=Batching(batching)), tables)


def _check_fingerprints(mixture: MixtureSpec, found: Sequence[str]) -> None:
    wanted = [dataset.fingerprint for dataset in mixture.datasets]
    if len(wanted) != len(found):
        raise click.UsageError(
            f"--mixture: it has {len(wanted)} datasets, and {len(found)} URLs are given."
        )
    for dataset, fingerprint in zip(mixture.datasets, found, strict=True):
        if dataset.fingerprint != fingerprint:
            raise TokenDatasetChangedError(
                f"dataset {dataset.name!r} of the mixture has fingerprint {dataset.fingerprint}; "
                f"at its URL lies {fingerprint}: give the URLs in the mixture's order, or the "
                "version that it was made for"
            )


def _ids(order: Order | MixtureOrder, epoch: int, batch: RankBatch) -> Ids:
    from headrace.order import MixtureOrder, batch_sample_ids  # noqa: PLC0415

    ids = batch_sample_ids(order, epoch, batch)
    if not isinstance(order, MixtureOrder):
        return [int(sample) for sample in ids.tolist()]
    datasets = order.first_ids.searchsorted(ids, side="right") - 1
    own = ids - order.first_ids[datasets]
    return [f"{d}:{s}" for d, s in zip(datasets.tolist(), own.tolist(), strict=True)]
