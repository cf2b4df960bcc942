"""Enforce rules for every request.

1. The host is one of the page's, the method is GET, HEAD or POST, and the target and the body are
   short.
2. A request comes from this page, if the browser says where it comes from; other sites may only
   link to the page. So no other site can make a browser run filters over its user's data.
3. A request is answered within `DEADLINE_S`, or its connection is closed.
4. Every response has the headers `HEADERS`; one that shows a file has `FILE_POLICY` instead of
   `POLICY`.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Collection, Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.page.guard.hosts import is_known_host, is_own_origin

DEADLINE_S: Final = 60.0
"""Enough for a file of 16 MiB at 2 Mbit/s."""

MAX_TARGET_BYTES: Final = 8 << 10
MAX_HEAD_BYTES: Final = 16 << 10
MAX_BODY_BYTES: Final = 1 << 20
"""Enough for a state with a mixture of a few thousand datasets."""

_TOO_LATE: Final = "The request took too long.\n"
_TOO_LARGE: Final = f"The body is longer than {MAX_BODY_BYTES} bytes.\n"

STYLE: Final = (Path(__file__).parents[1] / "static" / "page.css").read_text("utf-8")
"""The style sheet, which pages carry, so that browsers show them without asking for it."""
_HASH: Final = b64encode(sha256(STYLE.encode()).digest()).decode()

POLICY: Final = (
    f"default-src 'none'; script-src 'self'; style-src 'self' 'sha256-{_HASH}'; img-src 'self'; "
    "media-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
FILE_POLICY: Final = "default-src 'none'; sandbox; frame-ancestors 'none'"

HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # With no-referrer, browsers would hide the origin of the page's own forms, too.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Refuse invalid requests, and add headers to every response.

    Args:
        app: The application.
        names: The names of the page, in lower case.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a request."""
        if scope["type"] != "http":
            return

        has_started = False

        async def send_guarded(message: Message) -> None:
            nonlocal has_started
            has_started = True
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refused = _refusal(scope, self._names)
        app = self._app if refused is None else text_response(*refused)
        try:
            async with asyncio.timeout(DEADLINE_S):
                await app(scope, _bounded(receive), send_guarded)
        except TimeoutError:
            # A response that has started cannot be completed, so its connection is closed.
            if has_started:
                raise
            await text_response(504, _TOO_LATE)(scope, receive, send_guarded)


class TooLargeError(Exception):
    """A body is longer than the limit, contrary to its headers."""


def text_response(status: int, text: str, *_: object) -> Response:
    """Return a response in plain text, after which the connection is closed."""
    return PlainTextResponse(text, status, headers={"connection": "close"})


HANDLERS: Final = {
    TooLargeError: partial(text_response, 413, _TOO_LARGE),
    TimeoutError: partial(text_response, 504, _TOO_LATE),
    # Nobody reads this.
    ClientDisconnect: partial(text_response, 400, ""),
}
"""What is answered when a form is too long or too slow, or its browser goes away."""


def _refusal(scope: Scope, names: Collection[str]) -> tuple[int, str] | None:
    """Return a status and a reason, or None for a valid request."""
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_known_host(hosts[0], names):
        return 421, (
            "This page does not have that host name. Use localhost or an address, or start the "
            "page with --page-hosts NAME.\n"
        )
    if scope["method"] not in {"GET", "HEAD", "POST"}:
        return 405, "This page answers only GET, HEAD and POST.\n"
    is_link = scope["method"] != "POST" and headers.get("sec-fetch-dest") == "document"
    if not is_link and not _is_own(headers, hosts[0]):
        return 403, "Other sites may link to this page, but not load or send anything else.\n"
    return _too_long(scope, headers)


def _too_long(scope: Scope, headers: Headers) -> tuple[int, str] | None:
    if len(scope["raw_path"]) + len(scope["query_string"]) > MAX_TARGET_BYTES:
        return 414, f"The address is longer than {MAX_TARGET_BYTES} bytes.\n"
    if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
        return 431, f"The headers are longer than {MAX_HEAD_BYTES} bytes.\n"
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
        return 413, _TOO_LARGE
    return None


def _is_own(headers: Headers, host: str) -> bool:
    """Return whether a request was sent from this page, according to the browser."""
    site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
    return site in {"none", "same-origin"} and (origin is None or is_own_origin(origin, host))


def _bounded(receive: Receive) -> Receive:
    left = MAX_BODY_BYTES

    async def bounded() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise TooLargeError
        return message

    return bounded
