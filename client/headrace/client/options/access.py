"""How to authenticate at servers: TLS and a bearer token. Nothing here shows a secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from headrace.arguments import instance_or_none
from headrace.client.options.environment import ca_file, token_reader
from headrace.errors import BadArgumentError, ConfigurationError

Auth = str | Callable[[], str]
"""A bearer token, or a function that returns one, which is called for each stream."""

_CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    # A stream's messages arrive in the thread that asks for them, without a thread of gRPC that
    # hands them over: this saves 8 to 15 microseconds per message, and a thread per stream. The
    # name is from grpc.experimental.ChannelOptions.
    ("SingleThreadedUnaryStream", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name, this is how long connecting may take, with all handshakes. With 100 ms, a
    # server that is farther away could never be reached.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Servers send at most 3 MiB of payload per message; gRPC's default limit of 4 MiB is kept.
]

_UNSHARED: tuple[str, int | str] = ("grpc.use_local_subchannel_pool", 1)

_OPENED_IN: set[int] = set()
"""Ids of the processes that have opened a channel: this one and those it was forked from."""


def was_forked_after_use() -> bool:
    """Return whether this process was forked from one that had opened a channel.

    gRPC's locks may then be held by threads that do not exist here, and calls may hang.
    """
    return bool(_OPENED_IN - {os.getpid()})


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How to verify a server, and how the server can verify this client: names of PEM files.

    The files are read for each connection, so renewed certificates are picked up.

    Attributes:
        ca: Certificates of the authorities to trust; None for gRPC's own.
        cert: This client's certificate chain, for servers that ask for one; needs ``key``.
        key: The private key of ``cert``.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        """Refuse a certificate without a key, or a key without a certificate."""
        for name in ("ca", "cert", "key"):
            instance_or_none(
                f"tls.{name}", getattr(self, name), (str, Path), wanted="the name of a PEM file"
            )
        if (self.cert is None) != (self.key is None):
            raise BadArgumentError(
                f"tls.cert is {self.cert} and tls.key is {self.key}; give both, or neither",
                field="tls",
            )


def access_of(access: Access | None) -> Access:
    """Return the access that an argument means; None for what the environment says.

    Raises:
        ConfigurationError: The environment names a token that cannot be read.
    """
    wanted = "Access(auth=…, tls=TlsConfig(…)), or None"
    given = instance_or_none("access", access, Access, wanted=wanted)
    if given is not None:
        return given
    ca, read = ca_file(), token_reader()
    if read is not None:
        read()  # so that a wrong name is reported before any stream opens
    return Access(tls=None if ca is None else TlsConfig(ca=ca), auth=read)


@dataclass(frozen=True, slots=True)
class Access:
    """How a client authenticates, and how it encrypts.

    Attributes:
        tls: How to encrypt; None for plain text, in which anyone can read a bearer token.
        auth: Bearer token for the server, or a function that returns one and is called for each
            stream; None for none. No representation and no message contains it.
        authority: ``host:port`` to name in calls and to check certificates against, if it is not
            the address; empty for the address.
    """

    tls: TlsConfig | None = None
    auth: Auth | None = field(default=None, repr=False)
    authority: str = ""

    def __post_init__(self) -> None:
        """Refuse a token that cannot be sent."""
        instance_or_none(
            "access.tls", self.tls, TlsConfig, wanted="TlsConfig(ca=…), or None for plain text"
        )
        if self.auth is not None and not callable(self.auth):
            _check_token(self.auth)

    def open_channel(self, target: str, *, connection: str = "", window: int = 0) -> grpc.Channel:
        """Open a channel with a connection of its own.

        One that broke then causes no back-off for the next, and the streams of a lost replica
        spread over the others.

        Args:
            target: The address.
            connection: Names a connection, which all channels share that name it while one of them
                is open; empty for one that no other channel shares.
            window: Most bytes to receive before somebody asks for them; 0 if gRPC chooses.

        Raises:
            ConfigurationError: A file of ``tls`` cannot be read.
        """
        _OPENED_IN.add(os.getpid())
        # gRPC shares connections among channels whose options are all the same.
        own = ("headrace.connection", connection) if connection else _UNSHARED
        options = [*_CHANNEL_OPTIONS, own]
        if window:
            narrow = ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", window)
            options = [*options, *narrow]
        if self.authority:
            # A service's own replicas, by IP address: the environment's proxy is not for them.
            options = [
                *options,
                ("grpc.default_authority", self.authority),
                ("grpc.enable_http_proxy", 0),
            ]
        if self.tls is None:
            return grpc.insecure_channel(target, options=options)
        credentials = grpc.ssl_channel_credentials(
            root_certificates=_read("ca", self.tls.ca),
            private_key=_read("key", self.tls.key),
            certificate_chain=_read("cert", self.tls.cert),
        )
        return grpc.secure_channel(target, credentials, options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of each call.

        Raises:
            ConfigurationError: ``auth`` failed.
            BadArgumentError: ``auth`` returned no token.
        """
        if self.auth is None:
            return ()
        return (("authorization", f"Bearer {_token(self.auth)}"),)


def _token(auth: Auth) -> str:
    if isinstance(auth, str):
        return auth
    try:
        token = auth()
    except Exception as error:
        raise ConfigurationError(
            f"the function given as Access(auth=…) raised {type(error).__name__}; "
            "it must return a token",
            field="auth",
        ) from error
    _check_token(token)
    return token


def _check_token(token: object) -> None:
    # A header may hold only visible ASCII. No message contains the token itself.
    if not isinstance(token, str) or not token or not all("!" <= c <= "~" for c in token):
        found = f"{len(token)} characters" if isinstance(token, str) else type(token).__name__
        raise BadArgumentError(
            f"auth is a token of {found} that is not allowed in a header; expected a string of "
            "visible ASCII characters without spaces",
            field="auth",
        )


def _read(name: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = Path(path).read_bytes()
        why = "" if b"-----BEGIN " in content else "which is not PEM"
    except OSError as error:
        why = f"which cannot be read ({error.strerror})"
    if why:
        raise ConfigurationError(
            f"tls.{name} is {str(path)!r}, {why}; expected a PEM file", field="tls"
        )
    return content
