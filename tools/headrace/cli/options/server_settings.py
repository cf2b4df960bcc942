"""The settings of a server as options of the command line.

They have no defaults here. If an option is missing, the environment applies, then the file, then
`ServerConfig` and the settings of stages, whose defaults and descriptions the help shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from headrace.cli.options.objects import setting_options

_FILE = click.Path(dir_okay=False)
_TYPES = {
    "cache_dir": click.Path(file_okay=False),
    **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca", "tokens"), _FILE),
}


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


_LISTEN = click.option(
    "--listen",
    multiple=True,
    callback=lambda _context, _option, given: ",".join(given) or None,
    help="HOST:PORT to listen on; port 0 picks a free one. Also unix:/PATH. Separate several "
    "addresses by commas, or repeat the option.  [default: 127.0.0.1:50051]",
)
_UNIX_MODE = click.option(
    "--unix-mode",
    type=OctalType(),
    help="Permissions of a unix socket, in octal.  [default: 600]",
)
_OTHERS = setting_options(
    "headrace.server.settings.config_layers:server_settings",
    leave=("datasets", "listen", "unix_mode"),
    types=_TYPES,
)


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each setting of a server."""
    # Help lists options in the order of decorators, starting with the last one applied.
    return _LISTEN(_OTHERS(_UNIX_MODE(command)))
