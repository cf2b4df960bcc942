"""`headrace shuffle`: compare the cost and evenness of shuffle settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click
import numpy as np

from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.options.shared import missing_as_null_option, ramp_option, seed_option
from headrace.cli.options.types import PICTURE, SIZE
from headrace.cli.show.texts import size
from headrace.cli.stored.composition import groups_of, shares_of
from headrace.cli.stored.labels import StoredLabels, read_labels
from headrace.cli.stored.order_cost import OrderCost, order_cost
from headrace.loadtest.report.style import drawing
from headrace.order import Order, OrderSpec, table_of
from headrace.storage import (
    DEFAULT_BLOCK_BYTES,
    OpenDataset,
    SourceOptions,
    classes_of,
    open_dataset,
)

# Longer epochs are not measured label by label; this many samples take 3 s.
_MAX_MEASURED = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which orders are compared, and how.

    Attributes:
        label: Measure how evenly the values of this column are distributed.
        runs: Bytes of neighbouring samples to read together; 1MiB, 2MiB and 4MiB if none are given.
        memories: Bytes of samples to shuffle together, 0 for the whole epoch; 2GiB if none are
            given.
        lanes: Number of parts of the data that are shuffled separately.
        batch_size: Samples per batch over all ranks.
        read_bytes: Maximum number of stored bytes to read for --label, in evenly spaced blocks.
        get_price: Price of a million reads.
        picture: Plot the orders as PNG or SVG: what each part of epoch 0 is made of, by labels or
            eighths of the storage.
        dark: Draw the picture on a dark background.
        as_json: Print one JSON object per setting.
    """

    label: str | None = None
    runs: tuple[int, ...] = field(
        default=(1 << 20, 2 << 20, 4 << 20), metadata={"option": "--run-bytes"}
    )
    memories: tuple[int, ...] = field(default=(2 << 30,), metadata={"option": "--shuffle-bytes"})
    lanes: int = 1
    batch_size: int = 256
    read_bytes: int = field(default=1 << 30, metadata={"option": "--read"})
    get_price: float = 0.4
    picture: Path | None = None
    dark: bool = False
    as_json: bool = field(default=False, metadata={"option": "--json"})


@click.command(name="shuffle", cls=ObjectCommand)
@click.argument("url", metavar="URL")
@object_options(
    "headrace.cli.shuffle:Options",
    "options",
    types={
        **dict.fromkeys(("runs", "memories"), SIZE),
        "lanes": click.IntRange(min=1, max=64),
        "batch_size": click.IntRange(min=1),
        "picture": PICTURE,
    },
)
@seed_option
@ramp_option
@missing_as_null_option
def command(
    *,
    url: str,
    options: Options,
    seed: int,
    ramp: bool,
    missing_as_null: bool,
) -> None:
    """Compare shuffle settings for the dataset at URL.

    For each setting, the command prints the memory that a server needs, the reads per GiB, their
    price per TiB, and the bytes to read before the first batch. With --label, it also prints how
    evenly epoch 1 distributes the values of a column: the variance of their counts in batches of
    256, 1,024 and 4,096 samples relative to a uniform order, the number of distinct values in
    1,024 samples, and the longest absence of a value in percent of the epoch.

    \b
    headrace shuffle s3://bucket/imagenet --label label
    headrace shuffle s3://bucket/imagenet --run-bytes 4MiB --shuffle-bytes 8GiB --picture o.png
    """
    source = SourceOptions(missing_as_null=missing_as_null)
    with open_dataset(url, source_options=source) as dataset:
        if not dataset.sample_count:
            raise click.UsageError(f"{url} has no samples.")
        stored = None
        if options.label is not None:
            stored = _labels(dataset, options.label, max_bytes=options.read_bytes)
        labels = None if stored is None else stored.labels
        orders = [
            _order(
                dataset,
                OrderSpec(
                    seed=seed,
                    run_bytes=run,
                    shuffle_bytes=memory,
                    lanes=options.lanes,
                    unit=max(options.batch_size, options.lanes),
                    ramp=ramp,
                ),
            )
            for run, memory in itertools.product(options.runs, options.memories)
        ]
        costs = [
            order_cost(dataset, order, labels, batch_size=options.batch_size) for order in orders
        ]
        rows = [
            (order.spec, cost, cost.reads_per_gib * 1024 * options.get_price / 1e6)
            for order, cost in zip(orders, costs, strict=True)
        ]
        if options.picture is not None:
            _draw(dataset, orders, stored, options)
    if options.as_json:
        for row in rows:
            click.echo(json.dumps(_facts(*row)))
        return
    click.echo(
        f"{url}: {dataset.sample_count:,} samples, {size(dataset.raw_bytes)}, "
        f"{size(dataset.stored_bytes)} stored"
    )
    _show(rows)
    _tell_large_blocks(dataset.raw_bytes / dataset.block_count, rows)
    click.echo(
        f"A server whose disk cache (--cache-dir) holds all {size(dataset.stored_bytes)} "
        "reads each block only once in any order, so --shuffle-bytes 0 costs nothing."
    )


def _labels(dataset: OpenDataset, column: str, *, max_bytes: int) -> StoredLabels | None:
    if dataset.sample_count > _MAX_MEASURED:
        click.echo(
            f"an epoch of {dataset.sample_count:,} samples is too long to measure label by "
            f"label; expected at most {_MAX_MEASURED:,}",
            err=True,
        )
        return None
    found = read_labels(dataset, column, max_bytes=max_bytes)
    if found.read < found.blocks:
        click.echo(
            f"{found.read} of {found.blocks} blocks were read; samples between them are "
            "assumed to have the previous label (--read reads more)",
            err=True,
        )
    return found


def _order(dataset: OpenDataset, spec: OrderSpec) -> Order:

    return Order(spec, table_of(dataset.stretches()))


def _facts(spec: OrderSpec, cost: OrderCost, price_per_tib: float) -> dict[str, object]:
    facts = {
        "run_bytes": spec.run_bytes,
        "shuffle_bytes": spec.shuffle_bytes,
        "memory_bytes": cost.memory_bytes,
        "uniform": cost.is_uniform,
        "reads_per_gib": cost.reads_per_gib,
        "price_per_tib": price_per_tib,
        "first_batch_bytes": cost.first_batch_bytes,
    }
    return facts | (asdict(cost.evenness) if cost.evenness else {})


def _show(rows: Sequence[tuple[OrderSpec, OrderCost, float]]) -> None:
    heads = ["run", "memory", "reads/GiB", "price/TiB", "first batch"]
    if rows[0][1].evenness is not None:
        heads += ["variance", "labels", "absence, mean", "absence, max"]
    lines = [heads]
    for spec, cost, price_per_tib in rows:
        line = [
            size(spec.run_bytes),
            size(cost.memory_bytes) + (" (uniform)" if cost.is_uniform else ""),
            f"{cost.reads_per_gib:,.0f}",
            f"{price_per_tib:.2f}",
            size(cost.first_batch_bytes),
        ]
        if cost.evenness is not None:
            found = cost.evenness
            line += [
                " / ".join(f"{each:.2f}" for each in found.variances),
                f"{found.labels:.0f}",
                f"{found.absence:.1f} %",
                f"{found.longest:.1f} %",
            ]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells))


def _tell_large_blocks(mean: float, rows: Sequence[tuple[OrderSpec, OrderCost, float]]) -> None:
    """Say what blocks of a mean size allow, if they are larger than runs and not all are held."""
    limited = [spec for spec, cost, _ in rows if not cost.is_uniform and spec.run_bytes < mean]
    if not limited:
        return
    spec = max(limited, key=lambda spec: (spec.shuffle_bytes, -spec.run_bytes))
    click.echo(
        f"Blocks, such as row groups of Parquet, are read whole and hold {size(round(mean))} here: "
        f"{size(spec.shuffle_bytes)} mixes {max(1, round(spec.shuffle_bytes / mean)):,} of them "
        f"at a time, of runs of {size(spec.run_bytes)} it would mix "
        f"{max(1, spec.shuffle_bytes // spec.run_bytes):,}. If neighbours are alike (--label "
        f"measures it), headrace convert pays: it writes blocks of {size(DEFAULT_BLOCK_BYTES)}."
    )


def _draw(
    dataset: OpenDataset, orders: Sequence[Order], labels: StoredLabels | None, options: Options
) -> None:
    """Draw what each part of epoch 0 is made of in each order, and in a uniform one."""
    assert options.picture is not None
    classes = classes_of(dataset.schema.field(options.label)) if options.label else None
    groups = groups_of(labels, classes, dataset.sample_count)
    shares = [shares_of(order, groups, epoch=0) for order in orders]
    titles = [
        f"runs of {size(order.spec.run_bytes)}, {size(order.spec.shuffle_bytes)} of memory"
        for order in orders
    ]
    panels = [*zip(titles, (found for found, _ in shares), strict=True)]
    panels.append(("a uniform shuffle", shares[0][1]))
    picture_size = 9.0, 1.0 + 1.9 * len(panels)
    with drawing(options.picture, size=picture_size, is_dark=options.dark) as figure:
        axes = figure.subplots(len(panels), sharex=True)
        colours = [f"C{at}" for at in range(len(groups.names))]
        for axis, (title, found) in zip(axes, panels, strict=True):
            places = 100 * np.arange(len(found)) / max(len(found) - 1, 1)
            axis.stackplot(places, 100 * found.T, colors=colours, labels=groups.names, step="mid")
            axis.set(title=title, ylabel="% of samples", xlim=(0, 100), ylim=(0, 100))
        axes[-1].set_xlabel("% of the epoch")
        handles, names = axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=5)
