"""The settings of a server as options of the command line.

They have no defaults here. If an option is missing, the environment applies, then the file, then
`ServerConfig`. The help shows the defaults of `ServerConfig`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, TypeVar

import click

from headrace.cli.options.types import NOT_NEGATIVE, SIZE

_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])

_FILE = click.Path(dir_okay=False)
_COUNT = click.IntRange(min=1)


class OctalType(click.ParamType[int]):
    """Permissions in octal, as for `chmod`."""

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

# Name, type, default as shown in the help, and description.
_SETTINGS: tuple[tuple[str, Any, str, str], ...] = (
    (
        _LISTEN,
        str,
        "127.0.0.1:50051",
        (
            "HOST:PORT to listen on; port 0 picks a free one. Also unix:/PATH. Separate several "
            "addresses by commas, or repeat the option."
        ),
    ),
    (
        "cache_bytes",
        SIZE,
        "2GiB",
        (
            "Memory for decoded blocks, such as 8GiB. The default is what one job with default "
            "options shuffles together; add as much for each further job with its own order, and "
            "for each further lane."
        ),
    ),
    (
        "workers",
        click.IntRange(min=0),
        "0",
        "Number of processes that serve from a shared cache; 0 serves in one process.",
    ),
    (
        "cache_dir",
        click.Path(file_okay=False),
        "none",
        "Folder on a local disk that keeps fetched blocks across restarts.",
    ),
    ("cache_dir_bytes", SIZE, "64GiB", "Maximum size of the files in that folder."),
    ("prefetch_bytes", SIZE, "256MiB", "Stored bytes that one stream reads ahead."),
    ("fetch_threads", _COUNT, "64", "Maximum number of simultaneous reads from each store."),
    ("max_streams", _COUNT, "256", "Maximum number of open streams."),
    (
        "max_streams_per_peer",
        click.IntRange(min=0),
        "0",
        "Maximum number of open streams from one address; 0 sets no limit besides --max-streams.",
    ),
    ("max_batch_bytes", SIZE, "1GiB", "Maximum payload of one batch."),
    (
        "payload_bytes",
        SIZE,
        "2GiB",
        "Maximum memory for all batches and rings, including temporary memory.",
    ),
    (
        "max_stream_s",
        NOT_NEGATIVE,
        "900",
        "Seconds after which a stream is asked to reconnect, plus or minus 20 %; 0 for never.",
    ),
    ("drain_s", NOT_NEGATIVE, "30", "Seconds after SIGTERM in which streams may end."),
    (
        "request_timeout_s",
        NOT_NEGATIVE,
        "10",
        "Seconds that a client may take to send a request or to receive an answer.",
    ),
    ("heartbeat_s", NOT_NEGATIVE, "5", "Seconds between two heartbeats while a stream waits."),
    (
        "store_timeout_s",
        NOT_NEGATIVE,
        "120",
        "Seconds that a stream waits for a block before it fails with STORE_UNAVAILABLE.",
    ),
    (
        "step_timeout_s",
        NOT_NEGATIVE,
        "60",
        "Seconds that a step other than a transform may take for one batch.",
    ),
    (
        "step_threads",
        click.IntRange(min=0),
        "0",
        "Maximum number of threads that decode images and tokenize texts; 0 for one per processor.",
    ),
    (
        "decoded_cache_bytes",
        SIZE,
        "0",
        "Maximum memory for decoded images, kept for other ranks, jobs and epochs; 0 for none.",
    ),
    ("transform_workers", _COUNT, "2", "Maximum number of processes for each transform."),
    ("transform_timeout_s", NOT_NEGATIVE, "30", "Seconds that a transform may take for one batch."),
    ("metrics_listen", str, "none", "HOST:PORT for Prometheus metrics."),
    ("page", str, "none", "HOST:PORT of a web page that shows datasets, orders, runs and streams."),
    (
        "page_hosts",
        str,
        "none",
        "Host names of the page besides localhost, separated by commas.",
    ),
    (
        "otlp_endpoint",
        str,
        "none",
        "http://HOST:PORT of an OpenTelemetry collector to send traces to.",
    ),
    ("tls_cert", _FILE, "none", "PEM file with a certificate; enables TLS."),
    ("tls_key", _FILE, "none", "PEM file with its private key."),
    (
        "tls_client_ca",
        _FILE,
        "none",
        "PEM file with certificate authorities, one of which must sign each client's certificate.",
    ),
    (
        "tokens",
        _FILE,
        "none",
        "JSON file with tokens and certificates, and what each may read. It is reread on changes.",
    ),
    ("unix_mode", OctalType(), "600", "Permissions of a unix socket, in octal."),
    (
        "ring_bytes",
        SIZE,
        "256MiB",
        "Maximum shared memory for one client on a unix socket; 0 for none.",
    ),
    (
        "ring_uids",
        str,
        "none",
        "User ids besides the server's own that may use shared memory, separated by commas.",
    ),
    (
        "log_level",
        click.Choice(["debug", "info", "warning", "error"]),
        "info",
        "Lowest level to log to standard error.",
    ),
    (
        "log_format",
        click.Choice(["console", "json"]),
        "console",
        "Format of the log: one line per event, or JSON.",
    ),
)


_REPEATED = (
    (
        "--transform",
        "NAME=MODULE:FUNCTION@VERSION",
        "Function of Arrow batches that jobs may request",
    ),
    (
        "--tokenizer",
        "NAME=FILE",
        "tokenizer.json that jobs may request, as given to `headrace index --tokenizer`",
    ),
)


def setting_options(command: _Decorated) -> _Decorated:
    """Add an option for each setting of a server."""
    options = [
        click.option(
            f"--{name.replace('_', '-')}",
            name,
            type=kind,
            help=f"{text}  [default: {default}]",
            # All values count if it is given several times.
            multiple=name == _LISTEN,
            callback=_joined if name == _LISTEN else None,
        )
        for name, kind, default, text in _SETTINGS
    ]
    options.append(
        click.option(
            "--item-nulls/--no-item-nulls",
            default=None,
            help="Tell clients which list items are null. Without it, a null item is an error.",
        )
    )
    options += [
        click.option(
            flag,
            f"{flag[2:]}s",
            multiple=True,
            metavar=metavar,
            # None, so that the environment or the file applies.
            callback=lambda _context, _option, given: given or None,
            help=f"{what}; can be given several times.",
        )
        for flag, metavar, what in _REPEATED
    ]
    # Help lists options in the order of decorators, starting with the last one applied.
    return reduce(lambda decorated, option: option(decorated), reversed(options), command)


def default_texts() -> dict[str, object]:
    """Return the default of each setting as shown in the help, converted to its type."""
    return {
        name: None if text == "none" else click.types.convert_type(kind).convert(text, None, None)
        for name, kind, text, _ in _SETTINGS
    }


def _joined(
    _context: click.Context, _option: click.Parameter, given: tuple[str, ...]
) -> str | None:
    # None, so that the environment or the file applies.
    return ",".join(given) or None
