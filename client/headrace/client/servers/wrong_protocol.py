"""Tell a server that speaks something else from one that is away.

A server that is away may come back, so a client goes on trying. One that speaks HTTP/1, or TLS
where the client does not, will do so tomorrow: the address or an option is wrong, and the message
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
        ("WRONG_VERSION_NUMBER",),
        "does not speak TLS; leave tls= out of Access(…), or the --tls options on the command line",
    ),
    (
        ("Hostname Verification Check failed", "is not in peer certificate"),
        "has a certificate for another name; use a name from the certificate",
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
    """Return what is wrong with the address or the options, or None if the server may be away.

    Args:
        text: What gRPC says of a connection that failed.
    """
    return next(
        (meaning for signs, meaning in _CAUSES if any(sign in text for sign in signs)), None
    )


class _Server(Protocol):
    @property
    def address(self) -> str:
        """Where it is."""

    @property
    def access(self) -> Access:
        """How it is called."""


def explained(error: HeadraceError, server: _Server | None) -> HeadraceError:
    """Return the error of a first contact, with its cause where that can be found out.

    A server that speaks TLS closes connections without it, and one that asks for a client
    certificate those that show none; gRPC says no more than that they were closed. So the server
    is asked, for some seconds at most.

    Args:
        error: What came of the contact.
        server: Who was asked; None if nobody was.
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
    """Return what is wrong with this client's TLS, or None if that is not to be seen."""
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
    """Return a connection over which the server has begun TLS, or None if it does not."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over it: all that is asked is what the server does.
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
    """Return whether the server closes a connection on which a server of HTTP/2 speaks first.

    In TLS 1.3 the client's certificate is judged after the client's part of the handshake.
    """
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True
