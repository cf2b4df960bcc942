"""Tell a server that speaks something else from one that is away.

A server that is away may come back, so a client goes on trying. One that speaks HTTP/1, or TLS
where the client does not, will do so tomorrow: the address or an option is wrong, and the message
says which.
"""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from headrace.client.options.access import Access
from headrace.errors import HeadraceError, ServerUnreachableError

_PROBE_S = 1.0

# What gRPC says, and what that means.
_CAUSES = (
    (
        ("Expected SETTINGS frame as the first frame", "http1.x server"),
        (
            "speaks HTTP/1 and not gRPC, as the ports of web pages and of metrics do; pass the "
            "address that `headrace serve` prints"
        ),
    ),
    (
        ("WRONG_VERSION_NUMBER",),
        "does not speak TLS; leave tls= out of Access(…), or the --tls options on the command line",
    ),
    (
        ("Hostname Verification Check failed", "is not in peer certificate"),
        "has a certificate for another name; pass a name that the certificate holds",
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

    A server that speaks TLS closes connections without it, and gRPC says no more than that. So it
    is asked, for a second at most, whether it does.

    Args:
        error: What came of the contact.
        server: Who was asked; None if nobody was.
    """
    is_unclear = isinstance(error, ServerUnreachableError) and any(
        sign in error.message for sign in _CLOSED
    )
    if not is_unclear or server is None or server.access.tls is not None:
        return error
    if not _speaks_tls(server.address):
        return error
    return ServerUnreachableError(
        f"{server.address} {_SPEAKS_TLS}", target=server.address, mistake="tls"
    )


def _speaks_tls(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        return False
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is sent over it: whether it can be begun is all that is asked.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S) as plain,
            context.wrap_socket(plain),
        ):
            return True
    except (OSError, ValueError):
        return False
