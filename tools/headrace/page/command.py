"""`headrace view`: look at datasets in a browser, without a server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import click

from headrace.arguments import split_source
from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.errors import ConfigurationError
from headrace.server import DatasetConfig, start_logging
from headrace.server.access.callers import Access

_FILE = click.Path(dir_okay=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Where the page is, and who may see it.

    Attributes:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        page_hosts: Host names of the page besides localhost, separated by commas.
        tokens: JSON file of tokens, as for headrace serve; visitors log in with one of them.
        tls_cert: PEM file of a certificate.
        tls_key: PEM file of its private key.
        tokenizers: tokenizer.json that turns token ids back into text.
    """

    listen: str = "127.0.0.1:8080"
    page_hosts: str = ""
    tokens: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tokenizers: tuple[str, ...] = field(default=(), metadata={"metavar": "NAME=FILE"})


@click.command(name="view", cls=ObjectCommand)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@object_options(
    "headrace.page.command:Options",
    "options",
    types={
        "tokens": click.Path(dir_okay=False, exists=True),
        **dict.fromkeys(("tls_cert", "tls_key"), _FILE),
    },
)
def command(*, urls: tuple[str, ...], options: Options) -> None:
    """Show the datasets at URLs as a web page, until Ctrl-C.

    The page shows samples, columns, versions, orders and runs, without a server. When it is ready,
    the command prints one line with its address. Anyone who can open that address sees the data, so
    addresses other than this machine's own require --tokens.

    \b
    headrace view s3://bucket/photos
    headrace view /data/flights /data/digits --listen 127.0.0.1:0
    """
    from headrace.page.listen import serve_page  # noqa: PLC0415 - needs the [page] extra
    from headrace.page.settings import PageSettings  # noqa: PLC0415
    from headrace.server.datasets.open_served import open_one  # noqa: PLC0415
    from headrace.server.stages.texts.tokenizers import load_tokenizers  # noqa: PLC0415

    try:
        settings = PageSettings(
            listen=options.listen,
            hosts=tuple(filter(None, map(str.strip, options.page_hosts.split(",")))),
            tokens=options.tokens or "",
            tls_cert=options.tls_cert or "",
            tls_key=options.tls_key or "",
        )
    except ConfigurationError as error:
        raise click.UsageError(error.message) from error
    configs = _named(urls)
    for config in configs.values():
        open_one(config).close()  # a wrong URL ends the command, not the first look
    texts = load_tokenizers(options.tokenizers)
    start_logging("warning", "console")
    access = Access(Path(options.tokens) if options.tokens else None)
    serve_page(
        settings,
        configs=lambda: configs,
        access=access,
        tokenizers=texts,
        on_ready=lambda url: click.echo(f"headrace shows {', '.join(configs)} at {url}"),
    )


def _named(urls: tuple[str, ...]) -> dict[str, DatasetConfig]:
    """Name each dataset by the last part of its URL."""
    configs: dict[str, DatasetConfig] = {}
    for url in urls:
        path = split_source(url)[0].partition("#")[0]
        end = re.sub(r"[^A-Za-z0-9._-]+", "-", path.rstrip("/").rpartition("/")[2])
        name = base = end.strip("-.")[:100] or "dataset"
        number = 1
        while name in configs:
            number += 1
            name = f"{base}-{number}"
        configs[name] = DatasetConfig(url=url)
    return configs
