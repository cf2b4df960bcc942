"""How to authenticate at servers: TLS and a bearer token. Nothing here shows a secret."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from headrace.arguments import instance_or_none
from headrace.errors import BadArgumentError, ConfigurationError

Auth = str | Callable[[], str]
"""A bearer token, or what returns one; called again for each stream, so it may renew it."""

_CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    # A stream's messages arrive in the thread that asks for them, not in one of gRPC's that hands
    # them over: 8 to 15 microseconds less a message, and a thread less a stream. It is the name
    # that grpc.experimental.ChannelOptions has for it.
    ("SingleThreadedUnaryStream", 1),
    # Each stream has a connection of its own, made when the stream is opened: a broken one leaves
    # no back-off behind for the next, and a lost replica's streams spread over the others.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Despite its name: how long one connection may take to be made, handshakes and all. With 100 ms
    # no server farther away than that could ever be reached.
    ("grpc.min_reconnect_backoff_ms", 5000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Servers send at most 3 MiB of payload a message; stock limit of gRPC is 4 MiB. Kept.
]


_OPENED_IN: set[int] = set()
"""Ids of the processes, this one and those it was forked from, that have opened a channel."""


def was_forked_after_use() -> bool:
    """Return whether this process was forked from one that had opened a channel.

    gRPC's locks may then be held by threads that did not come along: calls hang now and then.
    """
    return bool(_OPENED_IN - {os.getpid()})


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """How to trust a server, and how it may trust this client: names of PEM files.

    The files are read for each connection, so a renewed certificate is used from then on.

    Attributes:
        ca: Certificates of the authorities that may vouch for the server; None for gRPC's own.
        cert: This client's certificate chain, for servers that ask for one; needs ``key``.
        key: The private key of ``cert``.
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None

    def __post_init__(self) -> None:
        """Refuse half of a pair."""
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
    """Return the access that an argument means; None for plain text without a token."""
    wanted = "Access(auth=…, tls=TlsConfig(…)), or None"
    return instance_or_none("access", access, Access, wanted=wanted) or Access()


@dataclass(frozen=True, slots=True)
class Access:
    """How a client authenticates, and how it encrypts.

    Attributes:
        tls: How to encrypt; None for plain text, in which anyone can read a bearer token.
        auth: Bearer token for the server, or a function that returns one and is called for each
            stream; None for none. No representation and no message contains it.
        authority: ``host:port`` that calls name and certificates are checked against, where the
            address is another; empty for the address itself.
    """

    tls: TlsConfig | None = None
    auth: Auth | None = field(default=None, repr=False)
    authority: str = ""

    def __post_init__(self) -> None:
        """Refuse a token that cannot travel, before anything does."""
        instance_or_none(
            "access.tls", self.tls, TlsConfig, wanted="TlsConfig(ca=…), or None for plain text"
        )
        if self.auth is not None and not callable(self.auth):
            _check_token(self.auth)

    def open_channel(self, target: str) -> grpc.Channel:
        """Return a channel of its own.

        Raises:
            ConfigurationError: A file of ``tls`` cannot be read.
        """
        _OPENED_IN.add(os.getpid())
        options = _CHANNEL_OPTIONS
        if self.authority:
            # A service's own replicas, by number: no proxy of the environment is meant.
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
        """Return what goes with each call.

        Raises:
            ConfigurationError: ``auth`` failed.
            BadArgumentError: It returned no token.
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
    # Visible ASCII alone may stand in a header; the token itself stands in no message.
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
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"tls.{name} is {str(path)!r}, which cannot be read ({error.strerror}); expected a PEM "
            "file",
            field="tls",
        ) from error
