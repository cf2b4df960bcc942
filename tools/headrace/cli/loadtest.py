"""`headrace loadtest`: simulate many trainers, and verify what they receive."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand
from headrace.cli.options.shared import (
    columns_option,
    end_option,
    global_batch_size_option,
    missing_as_null_option,
    order_options,
    where_option,
)
from headrace.cli.options.types import NOT_NEGATIVE, PICTURE, TARGETS, NumberType
from headrace.cli.show.progress import swarm_progress
from headrace.cli.swarm.faults import CutType, PauseType, RescaleType, ShareType
from headrace.cli.swarm.plan import Options, expected_orders, fetch_datasets, swarm_spec
from headrace.cli.swarm.report import LoadReport
from headrace.loadtest import (
    Cut,
    FaultyProxy,
    Kill,
    Mark,
    Progress,
    Summary,
    SwarmSpec,
    check_tokens,
    draw,
    prove,
    run_faults,
    run_swarm,
    summarise,
)


@click.command(name="loadtest", cls=ObjectCommand)
@click.argument("targets", metavar="TARGET[,TARGET...]", type=TARGETS)
@click.argument("dataset", metavar="[DATASET]", default="")
@click.option(
    "--mixture",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file that describes a mixture of datasets, instead of DATASET.",
)
@click.option("--ranks", type=click.IntRange(min=1), default=8, help="Ranks per job.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=1,
    help="Number of simultaneous jobs, each with its own seed.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
    help="Samples per batch of each rank.",
)
@global_batch_size_option
@click.option("--epochs", type=click.IntRange(min=1), show_default="1", help="Epochs to read.")
@click.option("--steps", type=click.IntRange(min=1), help="Steps to read, instead of epochs.")
@click.option("--seconds", type=NumberType(min=0.1), help="Seconds to read, instead of epochs.")
@click.option(
    "--step-ms",
    type=NOT_NEGATIVE,
    default=0.0,
    help="Milliseconds per training step; 0 reads as fast as possible.",
)
@order_options(leave=("buckets",))
@end_option
@columns_option
@where_option
@click.option(
    "--transport",
    metavar="NAME",
    default="grpc",
    help="How batches arrive: grpc; ring, which is shared memory, for a server's unix socket; "
    "lane, a connection beside gRPC's; or "
    "auto for the best that is available.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    show_default="one per core",
    help="Number of processes for the ranks.",
)
@click.option(
    "--manifest",
    "manifests",
    metavar="URL",
    multiple=True,
    help="URL of the dataset, to compare every sample with its manifest. For a mixture, give one "
    "for each dataset, in its order.",
)
@missing_as_null_option
@click.option(
    "--tokens",
    type=click.IntRange(min=0),
    default=8,
    help="Number of tokens to resume with a second reader.",
)
@click.option(
    "--kill",
    "kills",
    type=click.IntRange(min=1),  # 0 and -1 would be groups of processes, or all of them
    multiple=True,
    metavar="PID",
    help="Kill this process, such as the server, during the run.",
)
@click.option(
    "--restart",
    metavar="CMD",
    help="Command that starts a new process after each kill, to be killed next. Its output is "
    "discarded.",
)
@click.option(
    "--every",
    type=NOT_NEGATIVE,
    default=5.0,
    help="Minimum seconds between two faults. A fault also waits until batches arrive again.",
)
@click.option(
    "--rescale",
    "rescales",
    type=RescaleType(),
    multiple=True,
    help="Change the number of ranks during the run; 8:6@50% continues with 6 after half of it.",
)
@click.option(
    "--pause-rank",
    "pauses",
    type=PauseType(),
    multiple=True,
    help="Pause a rank during the run; 3:10@25% pauses rank 3 for 10 s after a quarter of it.",
)
@click.option(
    "--crash-at",
    "crashes",
    type=ShareType(),
    multiple=True,
    help="Kill all ranks after this share of the steps, such as 40%, and resume them.",
)
@click.option(
    "--cut-network",
    "cuts",
    type=CutType(),
    multiple=True,
    help="Disturb the network through a built-in proxy: reset, blackhole:5, latency=0.02 or "
    "bandwidth=1048576.",
)
@access_options
@click.option(
    "--give-up-s",
    type=NOT_NEGATIVE,
    default=60.0,
    help="Seconds without a server after which a rank gives up.",
)
@click.option(
    "--min-samples-per-s",
    type=NOT_NEGATIVE,
    help="Fail if all ranks together receive fewer samples per second.",
)
@click.option(
    "--max-p99-ms",
    type=NOT_NEGATIVE,
    help="Fail if the 99th percentile of the wait for a batch is longer.",
)
@click.option("--picture", type=PICTURE, help="Plot the run as PNG or SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object at the end.")
def command(**given: Any) -> int:
    """Read DATASET as many trainers would, and verify every sample.

    Each rank reads from the server at TARGET through the client, and records a digest of every
    batch. At the end, each batch is compared with the plan and, with --manifest, with the samples
    computed from the manifest alone. The exit code is 1 if a sample was lost, repeated or out of
    order, if a rank gave up, if a fault could not be caused, or if a limit was missed.

    \b
    headrace loadtest localhost:50051 flights --ranks 256 --step-ms 50
    headrace loadtest localhost:50051 flights --manifest s3://bucket/flights --rescale 8:6@50%
    headrace loadtest localhost:50051 --mixture mixture.json --manifest s3://bucket/web \\
        --manifest s3://bucket/books
    headrace loadtest localhost:50051 flights --kill 4711 --restart 'headrace serve …' --every 5
    """
    options = Options(**given)
    datasets = fetch_datasets(options)
    spec = swarm_spec(options, datasets)
    orders = None
    if options.manifests:
        orders = expected_orders(
            datasets, spec, options.manifests, missing_as_null=options.missing_as_null
        )
    kills = [Kill(pid, restart=options.restart_command) for pid in options.kills]
    progress, faults = _Progress(), list[Mark]()
    with (
        _proxied(spec, options.cuts) as (through, proxies),
        swarm_progress() as progress.show,
        run_faults(
            kills,
            proxies=proxies,
            cuts=options.cuts,
            every_s=options.every,
            batches=lambda: progress.batches,
            note=lambda what: faults.append(Mark(time.time(), what)),
        ) as failed_faults,
    ):
        result = run_swarm(through, progress=progress)
    summary = summarise(result)
    report = LoadReport(
        summary=summary,
        proof=prove(result, orders),
        tokens=check_tokens(result, targets=options.addresses, most=options.tokens),
        kills=sum(kill.count for kill in kills),
        limits=_missed_limits(summary, options),
        failed_faults=tuple(failed_faults),
    )
    if options.picture is not None and report.proof.batches:
        draw(result, options.picture, faults=faults)
    _show(report, kills, options)
    return 0 if report.passed else 1


class _Progress:
    """Show progress, and remember the number of batches."""

    def __init__(self) -> None:
        self.batches = 0
        self.show: Callable[[Progress], None] = lambda _: None

    def __call__(self, progress: Progress) -> None:
        self.batches = progress.batches
        self.show(progress)


@contextmanager
def _proxied(spec: SwarmSpec, cuts: Sequence[Cut]) -> Iterator[tuple[SwarmSpec, list[FaultyProxy]]]:

    if not cuts:
        yield spec, []
        return
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultyProxy(target)) for target in spec.targets]
        yield replace(spec, targets=tuple(proxy.address for proxy in proxies)), proxies


def _missed_limits(summary: Summary, options: Options) -> tuple[str, ...]:
    missed = []
    min_rate, max_ms = options.min_samples_per_s, options.max_p99_ms
    if min_rate is not None and summary.samples_per_s < min_rate:
        missed.append(f"{summary.samples_per_s:,.0f} samples/s; expected at least {min_rate:,.0f}")
    p99 = summary.wait_ms.get("p99")
    if max_ms is not None and p99 is None:
        missed.append(
            "no rank waited for a second batch, so there is no P99 to compare with "
            f"{max_ms:,.1f} ms; run more --steps"
        )
    if max_ms is not None and p99 is not None and p99 > max_ms:
        missed.append(f"the P99 of the wait is {p99:,.1f} ms; expected at most {max_ms:,.1f}")
    return tuple(missed)


def _show(report: LoadReport, kills: Sequence[Kill], options: Options) -> None:
    for kill in kills:
        if kill.last_pid is not None:
            click.echo(f"left running: process {kill.last_pid}", err=True)
    if options.as_json:
        click.echo(report.as_json())
    else:
        report.show()
