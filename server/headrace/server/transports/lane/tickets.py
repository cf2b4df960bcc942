"""The ticket of a lane, and who may use it."""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from urllib.parse import unquote

from headrace.lane import Hello, proof_of
from headrace.server.access.callers import presented
from headrace.server.stream.tickets import Ticket
from headrace.server.stream.transport_plugs import AttachingCall


class LaneTicket(Ticket):
    """A ticket for the caller of one call.

    The caller proves that it knows the call's bearer token, and has the call's certificate. If the
    call had neither, it comes from the call's address.

    Args:
        call: The call.
    """

    def __init__(self, call: AttachingCall) -> None:
        super().__init__()
        bearer = presented(call.metadata)
        self._proof = proof_of(bearer, self.secret)
        certificate = call.certificate
        self._certificate = ssl.PEM_cert_to_DER_cert(certificate.decode()) if certificate else b""
        self._address = "" if bearer or certificate else address_of(call.host)

    def is_for(self, hello: Hello, *, address: str, certificate: bytes) -> bool:
        """Return whether a connection is the caller's.

        Args:
            hello: What it showed.
            address: The IP address that it comes from.
            certificate: Its verified certificate, in DER; empty without one.
        """
        return (
            hmac.compare_digest(hello.proof, self._proof)
            and (not self._certificate or certificate == self._certificate)
            and self._address in ("", address)
        )


def address_of(host: str) -> str:
    """Return an IP address in one form, from gRPC's or the system's notation of it.

    Raises:
        ValueError: It is none.
    """
    plain = unquote(host).strip("[]").partition("%")[0]
    found = ipaddress.ip_address(plain)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
