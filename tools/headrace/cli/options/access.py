"""Options for authentication: TLS and a bearer token."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.client import Access, TlsConfig
from headrace.client.options.environment import CA_FILE, TOKEN_FILE, read_token

_Result = TypeVar("_Result")

_FILE = click.Path(dir_okay=False, path_type=Path)

_OPTIONS = (
    click.option(
        "--tls", is_flag=True, help="Use TLS, and trust gRPC's default certificate authorities."
    ),
    click.option(
        "--tls-ca",
        type=_FILE,
        envvar=CA_FILE,
        help="Use TLS, and trust the certificate authorities in this PEM file.",
    ),
    click.option(
        "--tls-cert", type=_FILE, help="PEM file of a client certificate; requires --tls-key."
    ),
    click.option("--tls-key", type=_FILE, help="PEM file of its private key."),
    click.option(
        "--token-file",
        type=_FILE,
        envvar=TOKEN_FILE,
        help="File that contains only a bearer token. It is read again for each stream.",
    ),
)


def access_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add ``--tls``, ``--tls-ca``, ``--tls-cert``, ``--tls-key`` and ``--token-file``.

    The command receives them as one argument, ``access: Access``.

    Raises:
        ConfigurationError: When the command is called: the token cannot be read.
        BadArgumentError: A certificate is given without its key, or the token is invalid.
    """

    @wraps(command)
    def wrapper(
        *,
        tls: bool,
        tls_ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        token_file: Path | None,
        **others: Any,
    ) -> _Result:
        access = _access(
            tls=tls, tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
        )
        return command(access=access, **others)

    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), wrapper)


def _access(
    *,
    tls: bool,
    tls_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    token_file: Path | None,
) -> Access:

    config = None
    if tls or tls_ca or tls_cert or tls_key:
        config = TlsConfig(ca=tls_ca, cert=tls_cert, key=tls_key)
    if token_file is None:
        return Access(config)
    # Read it once here, so that a wrong file name is reported before any stream opens.
    read_token(token_file)
    return Access(config, partial(read_token, token_file))
