"""`headrace doctor`: check whether a server or a store is fast enough for a job."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options.access import access_options
from headrace.cli.options.objects import ObjectCommand, field_options
from headrace.cli.options.shared import batch_size_option, columns_option, missing_as_null_option
from headrace.cli.options.types import PICTURE, TARGETS, NumberType
from headrace.cli.show.charts import draw_diagnosis, draw_store
from headrace.cli.show.texts import size
from headrace.client import Access

if TYPE_CHECKING:
    from headrace.bench import Diagnosis


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is measured, and for which job.

    Attributes:
        url: Measure the store of the dataset at this URL instead of a server.
        ranks: With --store or --images: number of ranks of the job, each of which needs --need.
        side: Also decode images of the dataset here, crop them to SIDE x SIDE, and print how many
            processors the job's images need.
        run_bytes: With --store: bytes of neighbouring samples to read together.
        shuffle_bytes: With --store: bytes of samples to shuffle together.
        get_price: With --store: price of a million reads.
        seconds: Duration of a pass; with --store, a fifth of it per number of simultaneous reads.
        picture: Plot the rates, the need and where the time went as PNG or SVG.
        dark: Draw the picture on a dark background.
        as_json: Print one JSON object.
    """

    targets: str | None
    dataset: str | None
    need: float
    batch_size: int
    columns: tuple[str, ...]
    missing_as_null: bool
    access: Access
    url: str | None = field(default=None, metadata={"option": "--store", "metavar": "URL"})
    ranks: int = 1
    side: int | None = field(default=None, metadata={"option": "--images", "metavar": "SIDE"})
    run_bytes: int = 2 << 20
    shuffle_bytes: int = 2 << 30
    get_price: float = 0.4
    seconds: float = 5.0
    picture: Path | None = None
    dark: bool = False
    as_json: bool = field(default=False, metadata={"option": "--json"})

    def __post_init__(self) -> None:
        if self.url is None and (self.targets is None or self.dataset is None):
            raise click.UsageError("give either TARGET and DATASET, or --store URL.")
        if self.url is not None and self.targets is not None:
            raise click.UsageError("--store measures a store, without a server; leave TARGET out.")
        if self.url is not None and self.side is not None:
            raise click.UsageError("--images reads them from a server; leave --store out.")


@click.command(name="doctor", cls=ObjectCommand)
@click.argument("targets", metavar="[TARGET[,TARGET...]", type=TARGETS, required=False)
@click.argument("dataset", metavar="DATASET]", required=False)
@click.option(
    "--need",
    required=True,
    metavar="N/s",
    callback=lambda _context, _option, text: _rate(text),
    help="Samples per second that one rank needs, such as 5000/s.",
)
@batch_size_option
@field_options(
    "headrace.cli.doctor:Options",
    types={
        "ranks": click.IntRange(min=1),
        "side": click.IntRange(min=1, max=1 << 14),
        "seconds": NumberType(min=0.1),
        "picture": PICTURE,
    },
)
@missing_as_null_option
@columns_option
@access_options
def command(**given: Any) -> int:
    """Check whether a server or a store is fast enough for a job.

    Run the command where the trainer will run. It reads the same batches of DATASET twice, as one
    rank would: first mostly from the server's store, then from its cache. The exit code is 0 if the
    server is fast enough. Otherwise it is 1, and the output names the hop that is too slow.

    With --images, it also decodes, crops at random and flips some of the dataset's images on one
    processor of this machine, and prints how many such processors the job needs.

    With --store, run it where the server will run. It reads parts of the dataset at URL, and prints
    the time to the first byte, the throughput by number of simultaneous reads, what the job needs
    while nothing is cached, and whether the store is fast enough.

    \b
    headrace doctor headrace:50051 flights --need 5000/s --batch-size 256
    headrace doctor headrace:50051 photos --need 1000/s --ranks 8 --images 224
    headrace doctor --store s3://bucket/flights --need 5000/s --ranks 64
    """
    options = Options(**given)
    if options.url is not None:
        return _diagnose_store(options.url, options)
    # Imported after the arguments are checked, since PyTorch takes seconds to load.
    from headrace.bench import Need, diagnose, measure_images  # noqa: PLC0415

    servers, dataset = (
        tuple(filter(None, (options.targets or "").split(","))),
        options.dataset or "",
    )
    wanted = Need(options.need, options.batch_size, options.columns)
    found = diagnose(servers, dataset, wanted, seconds=options.seconds, access=options.access)
    if options.picture is not None:
        draw_diagnosis(options.picture, found, is_dark=options.dark)
    images = None
    if options.side is not None:
        images = measure_images(
            servers,
            dataset,
            side=options.side,
            samples_per_s=options.need,
            ranks=options.ranks,
            columns=options.columns,
            access=options.access,
        )
    if options.as_json:
        cost = None if images is None else dataclasses.asdict(images)
        click.echo(json.dumps({**dataclasses.asdict(found), "images": cost}))
        return 0 if found.fed else 1
    _show_passes(found)
    if images is not None:
        click.echo(str(images))
    click.echo(found.verdict)
    if found.remedy:
        click.echo(found.remedy)
    return 0 if found.fed else 1


def _show_passes(found: Diagnosis) -> None:
    click.echo(f"round trip: {found.round_trip_ms:.1f} ms")
    for name, one in (("first pass", found.first), ("second pass", found.again)):
        hops = "  ".join(f"{hop} {share:.0%}" for hop, share in one.hops.items() if share >= 0.005)  # noqa: PLR2004 - rounds to 0 %
        click.echo(
            f"{name}: {one.samples_per_s:,.0f} samples/s, {one.mib_per_s:,.1f} MiB/s, first batch "
            f"after {one.first_batch_ms:,.0f} ms; time spent: {hops}"
        )
    if found.first.cache_shortage is not None:
        click.echo(f"cache: {found.first.cache_shortage}")


def _diagnose_store(url: str, options: Options) -> int:
    from headrace.bench import StoreNeed, diagnose_store  # noqa: PLC0415 - as above
    from headrace.storage import SourceOptions  # noqa: PLC0415

    need = StoreNeed(
        options.need * options.ranks, options.run_bytes, options.shuffle_bytes, options.get_price
    )
    source = SourceOptions(missing_as_null=options.missing_as_null)
    found = diagnose_store(url, need, seconds=options.seconds / 5, source_options=source)
    if options.picture is not None:
        draw_store(options.picture, found, is_dark=options.dark)
    if options.as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return 0 if found.fits else 1
    click.echo(
        f"first byte: median {found.first_byte_ms:.1f} ms, 90th percentile "
        f"{found.first_byte_p90_ms:.1f} ms"
    )
    click.echo(f"reads of {size(found.read_bytes)}:")
    for rate in found.rates:
        click.echo(
            f"{rate.at_once:>4} at once: {rate.mib_per_s:>8,.1f} MiB/s, {rate.read_ms:,.0f} ms each"
        )
    click.echo(
        f"while nothing is cached, the job reads {found.need_mib_per_s:,.1f} MiB/s in "
        f"{found.need_gets_per_s:,.1f} reads/s, which costs {found.price_per_hour:.2f} per hour; "
        f"with cache_bytes of {size(found.cache_bytes)} it reads each block once per epoch"
    )
    click.echo(found.verdict)
    return 0 if found.fits else 1


def _rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", text.replace(",", ""))
    if match is None or not float(match[1]):
        raise click.UsageError(
            f"--need: {text!r} is not a rate; expected samples per second, such as 5000/s."
        )
    return float(match[1])
