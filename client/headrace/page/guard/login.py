"""Log in with a token, by POST, and log out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from headrace.errors import HeadraceError
from headrace.page.guard.forms import read_form
from headrace.page.guard.sessions import LIFE_S

if TYPE_CHECKING:
    from headrace.page.site import Site

COOKIE: Final = "headrace-page"
_MOST_TOKEN: Final = 4096
_WAIT_S: Final = 0.5
"""The delay after an unknown token. Tokens are too long to be guessed anyway."""


def token_of(site: Site, number: str) -> str:
    """Return the token of a session, or an empty text."""
    return site.sessions.token_of(number) or ""


async def login(site: Site, request: Request) -> Response:
    """Show the form, or process it."""
    if request.method != "POST":
        target = _local(request.query_params.get("to", "/"))
        return site.html("login.html", target=target, problem="")
    form = await read_form(request)
    token, target = form.get("token", "").strip(), _local(form.get("to", "/"))
    try:
        if len(token) > _MOST_TOKEN or not token.isascii():
            token = ""
        caller = site.access.caller([("authorization", f"Bearer {token}")])
    except HeadraceError:
        await asyncio.sleep(_WAIT_S)
        problem = "This token is unknown, or gives access to nothing."
        return site.html("login.html", status=401, target=target, problem=problem)
    site.sessions.close(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse(target, 303)
    answer.set_cookie(
        COOKIE,
        site.sessions.open(token, caller=caller.name),
        max_age=int(LIFE_S),
        httponly=True,
        # Not strict, so that a link from a colleague works with the session.
        samesite="lax",
        secure=request.url.scheme == "https",
    )
    return answer


async def logout(site: Site, request: Request) -> Response:
    """End the session."""
    site.sessions.close(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE, httponly=True, samesite="lax")
    return answer


def _local(target: str) -> str:
    """Return a path of this page; the first page for other targets."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_path and target.isprintable() and "\\" not in target else "/"
