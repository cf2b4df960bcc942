"""Options for authentication: TLS and a bearer token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from headrace.cli.options.objects import object_options
from headrace.client import Access, TlsConfig
from headrace.client.options.environment import CA_FILE, TOKEN_FILE, read_token

_Result = TypeVar("_Result")

_FILES = ("tls_ca", "tls_cert", "tls_key", "token_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFiles:
    """Where the means to authenticate are.

    Attributes:
        tls: Use TLS, and trust gRPC's default certificate authorities.
        tls_ca: Use TLS, and trust the certificate authorities in this PEM file.
        tls_cert: PEM file of a client certificate; requires --tls-key.
        tls_key: PEM file of its private key.
        token_file: File that contains only a bearer token. It is read again for each stream.
    """

    tls: bool = field(default=False, metadata={"option": "--tls"})
    tls_ca: Path | None = field(default=None, metadata={"envvar": CA_FILE})
    tls_cert: Path | None = None
    tls_key: Path | None = None
    token_file: Path | None = field(default=None, metadata={"envvar": TOKEN_FILE})

    def access(self) -> Access:
        """Return them as a client takes them."""
        config = None
        if self.tls or self.tls_ca or self.tls_cert or self.tls_key:
            config = TlsConfig(ca=self.tls_ca, cert=self.tls_cert, key=self.tls_key)
        if self.token_file is None:
            return Access(config)
        # Read it once here, so that a wrong file name is reported before any stream opens.
        read_token(self.token_file)
        return Access(config, partial(read_token, self.token_file))


def access_options(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Add an option for each of `AccessFiles` to an `ObjectCommand`.

    The command receives them as one argument, ``access: Access``.

    Raises:
        ConfigurationError: When the command is called: the token cannot be read.
        BadArgumentError: A certificate is given without its key, or the token is invalid.
    """

    @wraps(command)
    def wrapper(*, access: AccessFiles, **others: Any) -> _Result:
        return command(access=access.access(), **others)

    types = dict.fromkeys(_FILES, click.Path(dir_okay=False, path_type=Path))
    return object_options(f"{__name__}:AccessFiles", "access", types=types)(wrapper)
