"""`headrace serve`: serve datasets until told to stop."""

from __future__ import annotations

import json
import logging

import click

from headrace.cli._types import NAMED_URL, SIZE

_FILE = click.Path(dir_okay=False)


class OctalType(click.ParamType[int]):
    """Permissions as `chmod` writes them."""

    name = "octal"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the permissions as a number."""
        try:
            return value if isinstance(value, int) else int(str(value), 8)
        except ValueError:
            self.fail(f"{value!r} is no octal number, such as 660", param, ctx)


@click.command(name="serve")
@click.argument("datasets", metavar="NAME=URL...", nargs=-1, required=True, type=NAMED_URL)
@click.option(
    "--listen",
    default="127.0.0.1:50051",
    show_default=True,
    help="HOST:PORT to listen on; port 0 picks a free one. Also unix:/PATH.",
)
@click.option(
    "--cache-bytes",
    type=SIZE,
    default="2GiB",
    show_default=True,
    help="Memory for decoded blocks, such as 8GiB. The default is twice the default window of "
    "1 GiB; give each further job with an order of its own as much.",
)
@click.option(
    "--max-streams",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Most streams at once.",
)
@click.option(
    "--drain-s",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds that streams have to end at SIGTERM.",
)
@click.option(
    "--metrics-listen", default="", help="HOST:PORT for Prometheus metrics; without it, none."
)
@click.option("--tls-cert", type=_FILE, default="", help="PEM file of a certificate: speak TLS.")
@click.option("--tls-key", type=_FILE, default="", help="PEM file of its private key.")
@click.option(
    "--tls-client-ca",
    type=_FILE,
    default="",
    help="PEM file of authorities: clients need a certificate of one of them.",
)
@click.option(
    "--tokens",
    type=_FILE,
    default="",
    help="JSON file of bearer tokens and what each may read; read again when it changes.",
)
@click.option(
    "--unix-mode",
    type=OctalType(),
    default="600",
    show_default=True,
    help="Permissions of a unix socket, in octal.",
)
@click.option(
    "--item-nulls",
    is_flag=True,
    help="Send which items of lists are null; without it a null item is an error.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What to log, on standard error.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
def command(
    *,
    datasets: tuple[tuple[str, str], ...],
    listen: str,
    cache_bytes: int,
    max_streams: int,
    drain_s: float,
    metrics_listen: str,
    tls_cert: str,
    tls_key: str,
    tls_client_ca: str,
    tokens: str,
    unix_mode: int,
    item_nulls: bool,
    log_level: str,
    as_json: bool,
) -> None:
    """Serve each dataset at URL under its NAME, until SIGTERM or Ctrl-C.

    Prints one line with the address when it is ready. URLs are local folders or s3://BUCKET/PREFIX;
    credentials and endpoint of S3 come from the usual AWS_ variables. URL#FINGERPRINT serves an
    older version, for a run that began with it.

    \b
    headrace serve flights=s3://bucket/flights digits=/data/digits --listen 0.0.0.0:50051
    """
    from headrace.server import ServerConfig, serve  # noqa: PLC0415 - needs the [server] extra

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    config = ServerConfig(
        listen=listen,
        datasets=_by_name(datasets),
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        tokens=tokens,
        unix_mode=unix_mode,
        metrics_listen=metrics_listen,
        cache_bytes=cache_bytes,
        max_streams=max_streams,
        drain_s=drain_s,
        item_nulls=item_nulls,
    )
    names = sorted(config.datasets)

    def ready(address: str) -> None:
        if as_json:
            click.echo(json.dumps({"address": address, "datasets": names}))
        else:
            click.echo(f"headrace serves {', '.join(names)} at {address}")

    serve(config, on_ready=ready)


def _by_name(datasets: tuple[tuple[str, str], ...]) -> dict[str, str]:
    urls = dict(datasets)
    if len(urls) < len(datasets):
        names = [name for name, _ in datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise click.UsageError(f"the name {twice[0]!r} is given to two datasets.")
    return urls
