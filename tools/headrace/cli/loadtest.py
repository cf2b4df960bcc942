"""`headrace loadtest`: simulate many trainers, and verify what they receive."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand, field_options
from headrace.cli.options.shared import (
    columns_option,
    end_option,
    global_batch_size_option,
    missing_as_null_option,
    order_options,
    where_option,
)
from headrace.cli.options.types import PICTURE, TARGETS, NumberType
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

_COUNT = click.IntRange(min=1)
_INTERRUPTED = 130


@click.command(name="loadtest", cls=ObjectCommand)
@click.argument("targets", metavar="TARGET[,TARGET...]", type=TARGETS)
@click.argument("dataset", metavar="[DATASET]", default="")
@field_options(
    "headrace.cli.swarm.plan:Options",
    types={
        "mixture": click.Path(exists=True, dir_okay=False, path_type=Path),
        **dict.fromkeys(("ranks", "jobs", "batch_size", "epochs", "steps", "processes"), _COUNT),
        "seconds": NumberType(min=0.1),
        "kills": _COUNT,  # 0 and -1 would be groups of processes, or all of them
        "rescales": RescaleType(),
        "pauses": PauseType(),
        "crashes": ShareType(),
        "cuts": CutType(),
        "picture": PICTURE,
    },
)
@global_batch_size_option
@order_options(leave=("buckets",))
@end_option
@columns_option
@where_option
@missing_as_null_option
@access_options
def command(**given: Any) -> int:
    """Read DATASET as many trainers would, and verify every sample.

    Each rank reads from the server at TARGET through the client, and records a digest of every
    batch. At the end, each batch is compared with the plan and, with --manifest, with the samples
    computed from the manifest alone. The exit code is 1 if a sample was lost, repeated or out of
    order, if a rank gave up, if a fault could not be caused, or if a limit was missed. Ctrl-C ends
    the run with the report of what was read until then, and with the exit code 130.

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
        _told_to_stop() as stop,
    ):
        result = run_swarm(through, progress=progress, stop=stop)
    summary = summarise(result)
    report = LoadReport(
        summary=summary,
        proof=prove(result, orders),
        # Who interrupts does not want to wait for answers of a server.
        tokens=check_tokens(
            result, targets=options.addresses, most=0 if stop.is_set() else options.tokens
        ),
        kills=sum(kill.count for kill in kills),
        limits=_missed_limits(summary, options),
        failed_faults=tuple(failed_faults),
        interrupted=stop.is_set(),
    )
    if options.picture is not None and report.proof.batches:
        draw(result, options.picture, faults=faults, is_dark=options.dark)
    _show(report, kills, options)
    if report.interrupted:
        return _INTERRUPTED
    return 0 if report.passed else 1


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Return an event that the first Ctrl-C sets; the second one interrupts as always."""
    stop = threading.Event()

    def note(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        click.echo("interrupted: what was read so far follows; Ctrl-C again ends at once", err=True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


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
