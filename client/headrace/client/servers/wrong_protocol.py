"""Tell a server that speaks another protocol from one that is unreachable.

An unreachable server may come back, so a client keeps trying. One that speaks HTTP/1, or TLS where
the client does not, will still do so tomorrow: the address or an option is wrong, and the message
says which.
"""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from headrace.client.options.access import Access, TlsConfig
from headrace.errors import HeadraceError, ServerUnreachableError

_PROBE_S = 1.0

# What gRPC says, and what that means.
_CAUSES = (
    (
        ("Expected SETTINGS frame as the first frame", "http1.x server"),
        (
            "speaks HTTP/1, not gRPC, as ports of web pages and of metrics do; pass the address "
            "that `headrace serve` prints"
        ),
    ),
    (
        # Not 502 to 504, with which a proxy reports a server that is away.
        tuple(f"HTTP proxy returned response code {code}" for code in (403, 405, 407)),
        (
            "was asked for through the proxy that the environment names in grpc_proxy, https_proxy "
            "or http_proxy, which refused; add the host to no_proxy"
        ),
    ),
    (
        ("WRONG_VERSION_NUMBER",),
        "does not speak TLS; leave out tls=, or name a server that does",
    ),
    (
        ("Hostname Verification Check failed", "is not in peer certificate"),
        "has a certificate for another name; use a name from the certificate",
    ),
    (
        ("certificate has expired", "certificate is not yet valid"),
        "has a certificate that is not valid now; renew it, or set this machine's clock",
    ),
    (
        ("CERTIFICATE_VERIFY_FAILED",),
        (
            "has a certificate that this client does not trust; pass the file of its authority "
            "with access=Access(tls=TlsConfig(ca=…)), or --tls-ca FILE on the command line"
        ),
    ),
)
_CLOSED = ("Socket closed", "Connection reset")
_SPEAKS_TLS = (
    "speaks TLS; pass access=Access(tls=TlsConfig(…)), or --tls or --tls-ca FILE on the command "
    "line"
)
_WANTED_CERTIFICATE = (
    "pass one of an authority in the server's --tls-client-ca, with access=Access(tls=TlsConfig("
    "cert=…, key=…)), or --tls-cert FILE and --tls-key FILE on the command line"
)


def mistake_in(text: str) -> str | None:
    """Return what is wrong with the address or the options; None if the server may be unreachable.

    Args:
        text: gRPC's description of a failed connection.
    """
    return next(
        (meaning for signs, meaning in _CAUSES if any(sign in text for sign in signs)), None
    )


class _Server(Protocol):
    @property
    def address(self) -> str:
        """The server's address."""

    @property
    def access(self) -> Access:
        """How to authenticate."""


def explained(error: HeadraceError, server: _Server | None) -> HeadraceError:
    """Return the error of a first contact, with its cause if it can be found.

    A server that speaks TLS closes connections without it, and one that requires client
    certificates closes connections without one; gRPC reports only that they were closed. So this
    tries to connect, for some seconds at most.

    Args:
        error: The error of the contact.
        server: The server; None if none was asked.
    """
    is_unclear = isinstance(error, ServerUnreachableError) and any(
        sign in error.message for sign in _CLOSED
    )
    if not is_unclear or server is None:
        return error
    mistake = _tls_mistake(server.address, server.access.tls)
    if mistake is None:
        return error
    return ServerUnreachableError(
        f"{server.address} {mistake}", target=server.address, mistake="tls"
    )


def _tls_mistake(address: str, tls: TlsConfig | None) -> str | None:
    """Return what is wrong with this client's TLS, or None if nothing is found."""
    begun = _begun_tls(address, tls)
    if begun is None:
        return None
    with begun:
        if tls is None:
            return _SPEAKS_TLS
        if not _is_closed(begun):
            return None
    if tls.cert is None:
        return f"asks for a client certificate, and this client has none; {_WANTED_CERTIFICATE}"
    return f"does not take the client certificate in {tls.cert}; {_WANTED_CERTIFICATE}"


def _begun_tls(address: str, tls: TlsConfig | None) -> ssl.SSLSocket | None:
    """Return a connection on which the server has started TLS, or None if it does not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over it: only the server's reaction matters.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        if tls is not None and tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
        plain = socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S)
        with plain:
            return context.wrap_socket(plain)
    except (OSError, ValueError):
        return None


def _is_closed(connection: ssl.SSLSocket) -> bool:
    """Return whether the server closes a connection, on which an HTTP/2 server would speak first.

    In TLS 1.3, the client's certificate is checked after the client's part of the handshake.
    """
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
