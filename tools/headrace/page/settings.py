"""The settings of a page."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import BadArgumentError
from headrace.server.settings.server_config import is_reached


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSettings:
    """Where a page is, and who may see it.

    Attributes:
        listen: HOST:PORT to listen on; port 0 picks a free one.
        page_hosts: Host names of the page besides localhost, separated by commas.
        tokens: JSON file of tokens, as for headrace serve; visitors log in with one of them.
        tls_cert: PEM file of a certificate.
        tls_key: PEM file of its private key.
        tokenizers: tokenizer.json that turns token ids back into text.
        request_s: Seconds that a browser may take to send a request.

    Raises:
        BadArgumentError: The page would listen beyond this machine and let anyone in.
    """

    listen: str = "127.0.0.1:8080"
    page_hosts: str = ""
    tokens: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tokenizers: tuple[str, ...] = field(default=(), metadata={"metavar": "NAME=FILE"})
    request_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.tokens and is_reached(self.listen):
            raise BadArgumentError(
                f"the page would listen on {self.listen} and let anyone in who can reach it; give "
                "a file of tokens, or listen on 127.0.0.1 and use a tunnel",
                field="listen",
            )
        if bool(self.tls_cert) != bool(self.tls_key):
            raise BadArgumentError(
                "tls_cert and tls_key belong together; give both or neither", field="tls_key"
            )
