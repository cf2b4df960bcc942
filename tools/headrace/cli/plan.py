"""`headrace plan`: calculate what the servers of a job need."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from headrace.cli.options.objects import ObjectCommand, field_options
from headrace.cli.options.shared import missing_as_null_option
from headrace.cli.options.types import PICTURE, SIZE, NumberType
from headrace.cli.show.charts import draw_use
from headrace.cli.show.texts import size
from headrace.cli.stored.job_plan import Job, JobPlan, plan_job
from headrace.cli.stored.order_cost import order_cost
from headrace.order import Order, table_of
from headrace.storage import SourceOptions, open_dataset


@click.command(name="plan", cls=ObjectCommand)
@click.argument("url", metavar="URL")
@click.option("--ranks", required=True, type=click.IntRange(min=1), help="Number of ranks.")
@click.option(
    "--step-ms",
    required=True,
    type=NumberType(min=0.1),
    help="Milliseconds that a training step takes, without waiting for data.",
)
@field_options(
    "headrace.cli.stored.job_plan:Job",
    types={
        **dict.fromkeys(("batch_size", "cores", "streams"), click.IntRange(min=1)),
        **dict.fromkeys(("network_gbit", "seconds"), NumberType(min=0.1)),
        **dict.fromkeys(("run_bytes", "shuffle_bytes"), SIZE),
    },
)
@missing_as_null_option
@click.option("--picture", type=PICTURE, help="Plot how much would be used as PNG or SVG.")
@click.option("--dark", is_flag=True, help="Draw the picture on a dark background.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    url: str,
    missing_as_null: bool,
    picture: Path | None,
    dark: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Calculate what the servers of a job need for the dataset at URL.

    The command serves the dataset from a process of its own for some seconds and measures the
    processor time of a batch, so run it on a machine like those that will serve, near the store.
    It prints how many replicas the job needs, the processors, memory, cache and network of each,
    the reads of an epoch and their price, and what would become too small first.

    \b
    headrace plan s3://bucket/flights --ranks 512 --step-ms 300 --batch-size 32
    headrace plan s3://bucket/flights --ranks 512 --step-ms 300 --cores 16 --network-gbit 25 --json
    """
    # Imported after the arguments are checked, since the client takes time to load.
    from headrace.bench import measure_serving  # noqa: PLC0415

    job = Job(**given)
    with open_dataset(
        url, source_options=SourceOptions(missing_as_null=missing_as_null)
    ) as dataset:
        if dataset.sample_count < job.batch_size:
            raise click.UsageError(
                f"{url} has {dataset.sample_count:,} samples, less than a batch of a rank "
                f"({job.batch_size:,})."
            )
        order = Order(job.order, table_of(dataset.stretches()))
        wanted = order_cost(dataset, order, None, batch_size=job.order.unit)
        cost = measure_serving(
            url,
            job.order,
            dataset,
            batch_size=job.batch_size,
            seconds=job.seconds,
            missing_as_null=missing_as_null,
        )
        found = plan_job(
            job,
            cost,
            dataset,
            memory_bytes=wanted.memory_bytes,
            reads_per_gib=wanted.reads_per_gib,
        )
    if picture is not None:
        title = f"{found.replicas} replicas; the first to become too small: {found.bottleneck}"
        draw_use(picture, found.use, title=title, is_dark=dark)
    if as_json:
        click.echo(json.dumps({**asdict(found), "cost": asdict(cost)}))
        return
    _show(found, job.cores)


def _show(found: JobPlan, cores: int) -> None:
    there = found.replicas - 1
    rows = [
        ("replicas", f"{found.replicas}, of which one may be away"),
        ("processors", f"{found.cores:,.1f} are used, of {there * cores} that are then left"),
        ("memory of each", size(found.memory_bytes)),
        ("cache_bytes", size(found.cache_bytes) + (" (all data)" if found.is_cached else "")),
        ("to the trainers", f"{size(round(found.sent_bytes_per_s))}/s"),
        ("from the store", f"{size(round(found.stored_bytes_per_s))}/s"),
        ("an epoch", f"{found.epoch_s:,.0f} s"),
        ("reads an epoch", f"{found.epoch_reads:,}, which cost {found.epoch_price:,.2f}"),
        ("first batch", f"{found.first_batch_ms:,.0f} ms after a stream asks for it"),
    ]
    for name, text in rows:
        click.echo(f"{name:<16}{text}")
    if found.is_cached:
        click.echo("The cache holds all data: the store is read in the first epoch alone.")
    used = found.use[found.bottleneck]
    click.echo(
        f"The first to become too small: {found.bottleneck}, at {used:.0%} of what should be used "
        "with one replica away."
    )
