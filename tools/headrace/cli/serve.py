"""`headrace serve`: serve datasets until stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from headrace.arguments import joined_sources
from headrace.cli.options.objects import ObjectCommand
from headrace.cli.options.server_settings import server_options
from headrace.cli.options.types import NAMED_URL
from headrace.errors import ConfigurationError
from headrace.server import (
    ConfigSource,
    ServerConfig,
    check_config,
    config_text,
    ignored_variables,
    serve,
    start_logging,
)


def _named_urls(
    ctx: click.Context, param: click.Parameter, words: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    return tuple(NAMED_URL.convert(each, param, ctx) for each in joined_sources(words))


@click.command(name="serve", cls=ObjectCommand)
@click.argument("datasets", metavar="[NAME=URL]...", nargs=-1, callback=_named_urls)
@click.option(
    "--config",
    "config_file",
    envvar="HEADRACE_CONFIG",
    type=click.Path(dir_okay=False, path_type=Path),
    help="YAML file of settings; HEADRACE_… variables and options override it.",
)
@click.option(
    "--check-config",
    is_flag=True,
    help="Check the settings, open every dataset, print the settings without secrets, and exit.",
)
@server_options
@click.option("--json", "as_json", is_flag=True, help="Print the line with the address as JSON.")
def command(
    *,
    datasets: tuple[tuple[str, str], ...],
    config_file: Path | None,
    check_config: bool,
    as_json: bool,
    **settings: object,
) -> int:
    """Serve each dataset at URL under its NAME.

    When it is ready, the server prints one line with its address. SIGTERM and Ctrl-C end it. URLs
    are local folders or s3://BUCKET/PREFIX. The credentials and the endpoint of S3 come from the
    usual AWS_ variables, or from the dataset's settings in the --config file. URL#FINGERPRINT
    serves an older version. `NAME=INDEX from SOURCE` serves the files at SOURCE by the index that
    `headrace index SOURCE --to INDEX` stored.

    The server rereads the file on SIGHUP and when it changes, so that you can add and remove
    datasets without a restart. docs/operations.md lists settings and exit codes,
    docs/monitoring.md metrics.

    \b
    headrace serve flights=s3://bucket/flights digits=/data/digits --listen 0.0.0.0:50051
    headrace serve --config headrace.yaml --check-config
    """
    flags = {name: value for name, value in settings.items() if value is not None}
    source = ConfigSource(
        file=config_file,
        environment=dict(os.environ),
        flags={**flags, "datasets": _by_name(datasets)},
    )
    try:
        config = source.load()
    except ConfigurationError as error:
        raise click.UsageError(error.message) from error
    if check_config:
        return _check(config)
    start_logging(config.log_level, config.log_format)
    names = sorted(config.datasets)

    def ready(address: str) -> None:
        if as_json:
            click.echo(json.dumps({"address": address, "datasets": names}))
        else:
            click.echo(f"headrace serves {', '.join(names)} at {address}")

    # Without a file there is nothing to reread, and SIGHUP ends the server.
    return serve(config, on_ready=ready, source=source if config_file else None)


def _check(config: ServerConfig) -> int:
    """Print the settings, open everything that they name, and report errors."""
    found = check_config(config)
    click.echo(config_text(config), nl=False)
    for name in ignored_variables(os.environ):
        click.echo(
            f"ignored the environment variable {name}, which is not a setting of the server",
            err=True,
        )
    for one in found:
        click.echo(one.text, err=True)
    return 0 if all(one.is_good for one in found) else 1


def _by_name(datasets: tuple[tuple[str, str], ...]) -> dict[str, str]:
    urls = dict(datasets)
    if len(urls) < len(datasets):
        names = [name for name, _ in datasets]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise click.UsageError(f"the name {twice[0]!r} is given to two datasets.")
    return urls
