"""`headrace view`: look at datasets in a browser, without a server."""

from __future__ import annotations

import re

import click

from headrace.arguments import split_source
from headrace.cli.options.objects import ObjectCommand, object_options
from headrace.page.settings import PageSettings
from headrace.server import DatasetConfig, start_logging

_FILE = click.Path(dir_okay=False)


@click.command(name="view", cls=ObjectCommand)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@object_options(
    "headrace.page.settings:PageSettings",
    "settings",
    leave=("request_s",),
    types={
        "tokens": click.Path(dir_okay=False, exists=True),
        **dict.fromkeys(("tls_cert", "tls_key"), _FILE),
    },
)
def command(*, urls: tuple[str, ...], settings: PageSettings) -> None:
    """Show the datasets at URLs as a web page, until Ctrl-C.

    The page shows samples, columns, versions, orders and runs, without a server. When it is ready,
    the command prints one line with its address. Anyone who can open that address sees the data, so
    addresses other than this machine's own require --tokens.

    \b
    headrace view s3://bucket/photos
    headrace view /data/flights /data/digits --listen 127.0.0.1:0
    """
    from headrace.page.listen import serve_page  # noqa: PLC0415 - needs the [page] extra
    from headrace.server.datasets.open_served import open_one  # noqa: PLC0415

    configs = _named(urls)
    for config in configs.values():
        open_one(config).close()  # a wrong URL ends the command, not the first look
    start_logging("warning", "console")
    serve_page(
        settings,
        configs=lambda: configs,
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
