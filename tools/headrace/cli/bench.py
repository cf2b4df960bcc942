"""`headrace bench`: how fast this machine serves four typical kinds of samples."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.cli.options.types import NumberType
from headrace.cli.show.progress import count_progress

if TYPE_CHECKING:
    from headrace.bench import Limits, StageRates

_KINDS = ("rows", "images", "tokens", "texts")
_MIB = 1 << 20
_SIDE, _IMAGE = 224, (500, 375)  # sizes for which decoding rates are usually quoted
_OWN_LOAD = 2  # of our server and client
_LIMITS = {
    "store": "file",
    "decode": "memcpy",
    "gather": "memcpy",
    "wire": "socket",
    "server": "socket",
    "client": "socket",
    "loop": "socket",
    "gpu": "socket",
}
"""The limit that each stage is compared with."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured, and for how long.

    Attributes:
        only: Kinds of samples to measure, instead of all.
        mib: Size of each dataset in MiB.
        seconds: Seconds per measurement; each kind takes 18.
        url: Write the datasets below this URL, to measure its store, instead of in a temporary
            folder.
        as_json: Print one JSON object.
    """

    only: tuple[str, ...] = ()
    mib: int = 64
    seconds: float = 2.0
    url: str | None = None
    as_json: bool = dataclasses.field(default=False, metadata={"option": "--json"})


@click.command(name="bench", cls=ObjectCommand)
@object_options(
    "headrace.cli.bench:Options",
    "options",
    types={
        "only": click.Choice(_KINDS),
        "mib": click.IntRange(min=1),
        "seconds": NumberType(min=0.1),
    },
)
def command(*, options: Options) -> None:
    """Measure each stage from a store to a training loop.

    The command generates samples and serves them: rows of 40 float32 with a label, images of 64
    KiB, tokens as int32[2048], and texts of about 400 bytes. The table compares the rate of each
    stage in MiB/s with the best that this machine can do, and names the slowest stage between a
    warm cache and the loop. For images, the last line says how many JPEGs per second a processor
    decodes, crops at random and flips.
    """
    from headrace.bench import WORKLOADS, measure_limits, measure_stages  # noqa: PLC0415

    only = options.only
    wanted = [workload for workload in WORKLOADS if not only or workload.name in only]
    found: list[StageRates] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        count_progress("measuring", total=len(wanted), unit="kinds of samples") as show,
    ):
        limits = measure_limits()
        for number, workload in enumerate(wanted):
            show(number)
            where = f"{(options.url or folder).rstrip('/')}/{workload.name}"
            found.append(
                measure_stages(
                    workload, where, raw_bytes=options.mib * _MIB, seconds=options.seconds
                )
            )
        limits = limits.or_better(measure_limits())  # the load of a machine changes
    images_per_s = _decoding_rate() if not only or "images" in only else None
    machine = _machine()
    if options.as_json:
        rates = [_as_json(one) for one in found]
        limit = dataclasses.asdict(limits)
        report = {"machine": machine, "limits": limit, "workloads": rates}
        click.echo(json.dumps({**report, "images_per_processor_second": images_per_s}))
        return
    _show(machine, limits, found)
    if images_per_s is not None:
        width, height = _IMAGE
        click.echo(
            f"{_SIDE} x {_SIDE} from {width} x {height}: {images_per_s:,.0f} images/s per processor"
        )


def _decoding_rate() -> float | None:
    """Return the images that a processor decodes and crops per second; None without a decoder."""
    from headrace.bench import decoding_rate  # noqa: PLC0415
    from headrace.errors import ConfigurationError  # noqa: PLC0415

    width, height = _IMAGE
    try:
        return decoding_rate(side=_SIDE, width=width, height=height)
    except ConfigurationError:
        return None


def _as_json(one: StageRates) -> dict[str, object]:
    named = {"bottleneck": one.bottleneck, "bottleneck_share": one.bottleneck_share}
    return {**dataclasses.asdict(one), **named}


def _machine() -> dict[str, object]:
    import grpc  # noqa: PLC0415

    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "grpcio": grpc.__version__,
    }


def _show(machine: dict[str, object], limits: Limits, found: Sequence[StageRates]) -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    console = Console(highlight=False)
    console.print("  ".join(f"{name} {value}" for name, value in machine.items()))
    console.print(
        f"limits, MiB/s: memcpy {limits.memcpy:,.0f}  socket {limits.socket:,.0f}  "
        f"file {limits.file:,.0f}"
    )
    cores = os.cpu_count() or 1
    if os.getloadavg()[0] > cores + _OWN_LOAD:
        console.print(f"other programs are using the {cores} cores, which lowers all figures")
    table = Table(title="MiB/s and share of the limit", title_justify="left")
    table.add_column("stage")
    table.add_column("limit")
    for one in found:
        table.add_column(one.workload, justify="right")
    for stage, limit in _LIMITS.items():
        rates = [float(getattr(one, stage)) for one in found]
        if any(rates):
            most = float(getattr(limits, limit))
            shares = (f"{rate:,.0f} ({rate / most:.0%})" if rate else "-" for rate in rates)
            table.add_row(stage, limit, *shares)
    table.add_row("first batch, ms", "", *(f"{one.first_batch_ms:,.1f}" for one in found))
    table.add_row("batch, KiB", "", *(f"{one.batch_bytes / 1024:,.0f}" for one in found))
    named = (f"{one.bottleneck}, {one.bottleneck_share:.0%} of the time" for one in found)
    table.add_row("bottleneck", "", *named)
    console.print(table)
