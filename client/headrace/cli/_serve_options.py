"""The settings of a server as options of the command line.

None has a default here: what is not given is left to the environment, to the file, and at last to
`ServerConfig`, whose defaults the help tells. A test holds the two together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from headrace.cli._types import SIZE

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)
_COUNT = click.IntRange(min=1)


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
            self.fail(f"{value!r} is not an octal number, such as 660", param, ctx)


_LISTEN = "listen"

# Name, type, default as the help tells it, and what it is for.
_SETTINGS: tuple[tuple[str, Any, str, str], ...] = (
    (
        _LISTEN,
        str,
        "127.0.0.1:50051",
        (
            "HOST:PORT to listen on; port 0 picks a free one. Also unix:/PATH. Several with "
            "commas, or several times."
        ),
    ),
    (
        "cache_bytes",
        SIZE,
        "2GiB",
        (
            "Memory for decoded blocks, such as 8GiB. The default is what one job shuffles "
            "together by default; give each further job with an order of its own, and each "
            "further lane, as much."
        ),
    ),
    (
        "workers",
        click.IntRange(min=0),
        "0",
        "Processes that serve, beside the one that has the cache; 0 serves in one process.",
    ),
    (
        "cache_dir",
        click.Path(file_okay=False),
        "none",
        "Folder on a local disk that keeps fetched blocks, also over restarts.",
    ),
    ("cache_dir_bytes", SIZE, "64GiB", "Greatest size of the files in that folder."),
    ("prefetch_bytes", SIZE, "256MiB", "Stored bytes that one stream asks for ahead of need."),
    ("fetch_threads", _COUNT, "64", "Reads of each store at once, at most."),
    ("max_streams", _COUNT, "256", "Most streams at once."),
    (
        "max_streams_per_peer",
        click.IntRange(min=0),
        "0",
        "Most streams at once from one address; 0 for as many as the server.",
    ),
    ("max_batch_bytes", SIZE, "1GiB", "Greatest payload of one batch."),
    (
        "payload_bytes",
        SIZE,
        "2GiB",
        "Greatest size of all batches and rings in memory, with what making them takes.",
    ),
    (
        "max_stream_s",
        float,
        "900",
        "Seconds after which a stream is asked to reconnect, give or take 20 %; 0 for never.",
    ),
    ("drain_s", float, "30", "Seconds that streams have to end at SIGTERM."),
    (
        "request_timeout_s",
        float,
        "10",
        "Seconds that a client may take to send a request, or to take an answer.",
    ),
    ("heartbeat_s", float, "5", "Seconds between two signs of life while a stream waits."),
    ("store_timeout_s", float, "120", "Seconds without a block until STORE_UNAVAILABLE."),
    ("step_timeout_s", float, "60", "Seconds that any other step may work on one batch."),
    (
        "step_threads",
        click.IntRange(min=0),
        "0",
        "Most threads that decode images; 0 for one a processor.",
    ),
    ("transform_workers", _COUNT, "2", "Most processes of each transform."),
    ("transform_timeout_s", float, "30", "Seconds that a transform may work on one batch."),
    ("metrics_listen", str, "none", "HOST:PORT for Prometheus metrics."),
    (
        "otlp_endpoint",
        str,
        "none",
        "http://HOST:PORT of an OpenTelemetry collector to send traces to.",
    ),
    ("tls_cert", _FILE, "none", "PEM file of a certificate: speak TLS."),
    ("tls_key", _FILE, "none", "PEM file of its private key."),
    (
        "tls_client_ca",
        _FILE,
        "none",
        "PEM file of authorities: clients need a certificate of one of them.",
    ),
    (
        "tokens",
        _FILE,
        "none",
        "JSON file of tokens and certificates, and what each may read; read again on a change.",
    ),
    ("unix_mode", OctalType(), "600", "Permissions of a unix socket, in octal."),
    (
        "ring_bytes",
        SIZE,
        "256MiB",
        "Greatest shared memory of one client on a unix socket; 0 for none.",
    ),
    (
        "ring_uids",
        str,
        "none",
        "Users, by number, that may have such memory beside the server's own; with commas.",
    ),
    (
        "log_level",
        click.Choice(["debug", "info", "warning", "error"]),
        "info",
        "What to log, on standard error.",
    ),
    ("log_format", click.Choice(["console", "json"]), "console", "One line an event, or JSON."),
)


def setting_options(command: _Decorated) -> _Decorated:
    """Add an option for each setting of a server."""
    options = [
        click.option(
            _flag(name),
            name,
            type=kind,
            help=f"{text}  [default: {default}]",
            # Of one given twice nothing is left out silently.
            multiple=name == _LISTEN,
            callback=_joined if name == _LISTEN else None,
        )
        for name, kind, default, text in _SETTINGS
    ]
    options.append(
        click.option(
            "--item-nulls/--no-item-nulls",
            default=None,
            help="Send which items of lists are null; without it a null item is an error.",
        )
    )
    options.append(
        click.option(
            "--transform",
            "transforms",
            multiple=True,
            metavar="NAME=MODULE:FUNCTION@VERSION",
            # Nothing given leaves it to the environment and the file.
            callback=lambda _context, _option, given: given or None,
            help="A function over Arrow batches that jobs may name; several times for several.",
        )
    )
    # Help lists options in the order in which decorators stand, from the last applied on.
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def default_texts() -> dict[str, object]:
    """Return the default of each setting as the help tells it, converted to its type."""
    return {
        name: None if text == "none" else click.types.convert_type(kind).convert(text, None, None)
        for name, kind, text, _ in _SETTINGS
    }


def _joined(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> str | None:
    # Nothing given leaves it to the environment and the file.
    return ",".join(given) or None


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
