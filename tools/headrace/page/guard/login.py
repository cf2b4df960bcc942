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
_MAX_TOKEN: Final = 4096
_DELAY_S: Final = 0.5
"""The delay after an unknown token. Tokens are too long to guess anyway."""


async def login(site: Site, request: Request) -> Response:
    """Show the login form, or process it."""
    if request.method != "POST":
        target = _local_path(request.query_params.get("to", "/"))
        return site.html("login.html", target=target, problem="")
    form = await read_form(request)
    token, target = form.get("token", "").strip(), _local_path(form.get("to", "/"))
    try:
        if len(token) > _MAX_TOKEN or not token.isascii():
            token = ""
        caller = site.access.caller([("authorization", f"Bearer {token}")])
    except HeadraceError:
        await asyncio.sleep(_DELAY_S)
        problem = "This token is unknown or gives no access."
        return site.html("login.html", status=401, target=target, problem=problem)
    site.sessions.close(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse(target, 303)
    answer.set_cookie(
        COOKIE,
        site.sessions.open(token, caller=caller.name),
        max_age=int(LIFE_S),
        httponly=True,
        # Not strict, so that links from other sites keep the session.
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


def _local_path(target: str) -> str:
    """Return a target on this page; the first page for any other target."""
    is_path = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_path and target.isprintable() and "\\" not in target else "/"
