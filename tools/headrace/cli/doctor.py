"""`headrace doctor`: check whether a server or a store is fast enough for a job."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options.access import access_options
from headrace.cli.options.shared import batch_size_option, columns_option, missing_as_null_option
from headrace.cli.options.types import NOT_NEGATIVE, SIZE, TARGETS, NumberType
from headrace.cli.show.texts import size

if TYPE_CHECKING:
    from headrace.bench import Diagnosis
    from headrace.client import Access


@click.command(name="doctor")
@click.argument("targets", metavar="[TARGET[,TARGET...]", type=TARGETS, required=False)
@click.argument("dataset", metavar="DATASET]", required=False)
@click.option(
    "--store",
    "url",
    metavar="URL",
    help="Measure the store of the dataset at this URL instead of a server.",
)
@click.option(
    "--need",
    required=True,
    metavar="N/s",
    help="Samples per second that one rank needs, such as 5000/s.",
)
@batch_size_option
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    help="With --store or --images: number of ranks of the job, each of which needs --need.",
)
@click.option(
    "--images",
    "side",
    type=click.IntRange(min=1, max=1 << 14),
    metavar="SIDE",
    help="Also decode images of the dataset here, crop them to SIDE x SIDE, and print how many "
    "processors the job's images need.",
)
@click.option(
    "--run-bytes",
    type=SIZE,
    default="2MiB",
    help="With --store: bytes of neighbouring samples to read together.",
)
@click.option(
    "--shuffle-bytes",
    type=SIZE,
    default="2GiB",
    help="With --store: bytes of samples to shuffle together.",
)
@click.option(
    "--get-price",
    type=NOT_NEGATIVE,
    default=0.4,
    help="With --store: price of a million reads.",
)
@missing_as_null_option
@columns_option
@click.option(
    "--seconds",
    type=NumberType(min=0.1),
    default=5.0,
    help="Duration of a pass; with --store, a fifth of it per number of simultaneous reads.",
)
@access_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    targets: str | None,
    dataset: str | None,
    url: str | None,
    need: str,
    batch_size: int,
    ranks: int,
    side: int | None,
    run_bytes: int,
    shuffle_bytes: int,
    get_price: float,
    missing_as_null: bool,
    columns: tuple[str, ...],
    seconds: float,
    access: Access,
    as_json: bool,
) -> int:
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
    rate = _rate(need)
    if url is not None:
        if targets is not None:
            raise click.UsageError("--store measures a store, without a server; leave TARGET out.")
        if side is not None:
            raise click.UsageError("--images reads them from a server; leave --store out.")
        return _diagnose_store(
            url,
            {
                "samples_per_s": rate * ranks,
                "run_bytes": run_bytes,
                "shuffle_bytes": shuffle_bytes,
                "get_price": get_price,
            },
            missing_as_null=missing_as_null,
            seconds=seconds,
            as_json=as_json,
        )
    if targets is None or dataset is None:
        raise click.UsageError("give either TARGET and DATASET, or --store URL.")
    # Imported after the arguments are checked, since PyTorch takes seconds to load.
    from headrace.bench import Need, diagnose, measure_images  # noqa: PLC0415

    servers = tuple(filter(None, targets.split(",")))
    wanted = Need(rate, batch_size, columns)
    found = diagnose(servers, dataset, wanted, seconds=seconds, access=access)
    images = None
    if side is not None:
        images = measure_images(
            servers,
            dataset,
            side=side,
            samples_per_s=rate,
            ranks=ranks,
            columns=columns,
            access=access,
        )
    if as_json:
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


def _diagnose_store(
    url: str, need: Mapping[str, Any], *, missing_as_null: bool, seconds: float, as_json: bool
) -> int:
    from headrace.bench import StoreNeed, diagnose_store  # noqa: PLC0415 - as above
    from headrace.storage import SourceOptions  # noqa: PLC0415

    options = SourceOptions(missing_as_null=missing_as_null)
    found = diagnose_store(url, StoreNeed(**need), seconds=seconds / 5, source_options=options)
    if as_json:
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
