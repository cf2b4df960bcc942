"""`headrace doctor`: will this job be fed from here, and if not, why not."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import click

from headrace.cli._access_options import access_of, access_options
from headrace.cli._types import TARGETS


@click.command(name="doctor")
@click.argument("targets", metavar="TARGET[,TARGET...]", type=TARGETS)
@click.argument("dataset", metavar="DATASET")
@click.option(
    "--need",
    required=True,
    metavar="N/s",
    help="Samples per second that one rank needs, such as 5000/s.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Samples per batch of that rank.",
)
@click.option("--columns", help="Columns to read, separated by commas.")
@click.option(
    "--seconds", type=click.FloatRange(min=0.1), default=5.0, show_default=True, help="To read for."
)
@access_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(
    *,
    targets: str,
    dataset: str,
    need: str,
    batch_size: int,
    columns: str | None,
    seconds: float,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
    as_json: bool,
) -> int:
    """Read DATASET as one rank of a job would, and say whether the server is fast enough.

    Run it where the trainer will run. It reads the same batches twice: first mostly from the
    server's store, then from its cache. The exit code is 0 if the server is fast enough, and 1 if
    not; then the output names the hop that is too slow.

    \b
    headrace doctor headrace:50051 flights --need 5000/s --batch-size 256
    """
    rate = _rate(need)
    # After what can be wrong with the arguments: it imports PyTorch, for seconds.
    from headrace.bench import Need, diagnose  # noqa: PLC0415

    access = access_of(
        tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
    )
    found = diagnose(
        tuple(filter(None, targets.split(","))),
        dataset,
        Need(rate, batch_size, tuple(filter(None, (columns or "").split(",")))),
        seconds=seconds,
        access=access,
    )
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found)))
        return 0 if found.fed else 1
    click.echo(f"round trip: {found.round_trip_ms:.1f} ms")
    for name, one in (("first pass", found.first), ("second pass", found.again)):
        hops = "  ".join(f"{hop} {share:.0%}" for hop, share in one.hops.items() if share >= 0.005)  # noqa: PLR2004 - rounds to 0 %
        click.echo(
            f"{name}: {one.samples_per_s:,.0f} samples/s, {one.mib_per_s:,.1f} MiB/s, first batch "
            f"after {one.first_batch_ms:,.0f} ms; time went to: {hops}"
        )
    click.echo(found.verdict)
    if found.remedy:
        click.echo(found.remedy)
    return 0 if found.fed else 1


def _rate(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/s)?", text.replace(",", ""))
    if match is None or not float(match[1]):
        raise click.UsageError(f"--need: {text!r} is not a rate; expected samples/s, as 5000/s.")
    return float(match[1])
