"""The settings of a page."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigurationError
from headrace.server.settings.server_config import is_reached


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """The address of a page, and who may see it.

    Attributes:
        listen: ``host:port``; port 0 picks a free one.
        hosts: Host names of the page besides localhost and IP addresses.
        tokens: JSON file of tokens, as for a server; if empty, anyone may see everything.
        tls_cert: PEM file of a certificate chain, with ``tls_key``; empty for HTTP.
        tls_key: PEM file of its private key.
        request_s: Seconds that a browser may take to send a request.

    Raises:
        ConfigurationError: The page would listen beyond this machine and let anyone in.
    """

    listen: str = "127.0.0.1:8080"
    hosts: tuple[str, ...] = ()
    tokens: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    request_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.tokens and is_reached(self.listen):
            raise ConfigurationError(
                f"the page would listen on {self.listen} and let anyone in who can reach it; give "
                "a file of tokens, or listen on 127.0.0.1 and use a tunnel"
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigurationError("tls_cert and tls_key belong together; give both or neither")
