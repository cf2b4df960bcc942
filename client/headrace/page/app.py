"""Map addresses to views, identify callers, and report errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.errors import HeadraceError
from headrace.page.guard.forms import read_form
from headrace.page.guard.login import COOKIE, login, logout, token_of
from headrace.page.guard.middleware import Guard, TooLargeError, gone, late, too_large
from headrace.page.site import Ask, Query, Site
from headrace.page.views import VIEWS, View
from headrace.server.access.callers import Caller

VIEW_S: Final = 20.0
"""How long a view may work. If a store takes longer, the view reports a timeout."""
_THREADS: Final = 8
_STATIC: Final = Path(__file__).parent / "static"
_STATIC_TYPES: Final = {
    "page.css": "text/css",
    "page.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_STATUS: Final = {
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 409,
    "PERMISSION_DENIED": 403,
    "UNAVAILABLE": 503,
}
_FAULT: Final = 500

_log = logging.getLogger(__name__)


def make_app(site: Site, *, names: Collection[str]) -> ASGIApp:
    """Return the page as an application.

    Args:
        site: The site to show.
        names: Host names of the page, in lower case.
    """
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-page")
    routes = [
        Route("/login", partial(login, site), methods=["GET", "POST"]),
        Route("/logout", partial(logout, site), methods=["POST"]),
        Route("/static/{name}", _static),
        *(
            Route(path, _endpoint(site, pool, view), methods=["GET", "POST"])
            for path, view in VIEWS.items()
        ),
    ]
    handlers = {TooLargeError: too_large, ClientDisconnect: gone, TimeoutError: late}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), names=names)


def _endpoint(
    site: Site, pool: ThreadPoolExecutor, view: View
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        caller = _caller(site, request)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if caller is None:
            return site.html("login.html", status=401, target=target, problem="")
        form = await read_form(request) if request.method == "POST" else {}
        query = Query({**request.query_params, **form})
        ask = Ask(site, caller, request.path_params, query, target, is_form=bool(form))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(VIEW_S):
                return await loop.run_in_executor(pool, _judged, view, ask)
        except TimeoutError:
            return _problem(
                ask, 504, f"The view was not ready within {VIEW_S:.0f} seconds. Try again."
            )

    return endpoint


def _caller(site: Site, request: Request) -> Caller | None:
    token = token_of(site, request.cookies.get(COOKIE, ""))
    try:
        return site.access.caller([("authorization", f"Bearer {token}")] if token else [])
    except HeadraceError:
        return None


def _judged(view: View, ask: Ask) -> Response:
    """Return the answer of a view, or an error with what its reader may see."""
    try:
        return view(ask)
    except HeadraceError as error:
        status = _STATUS.get(error.code, _FAULT)
        _log.info("%r: %s", ask.target[:200], error.message)
        return _problem(ask, status, ask.site.told(error).message)
    except Exception:  # noqa: BLE001 - the boundary of a view: no trace reaches a browser
        _log.exception("%r failed", ask.target[:200])
        return _problem(ask, _FAULT, "This is a bug of headrace. The page's log says more.")


def _problem(ask: Ask, status: int, text: str) -> Response:
    return ask.site.html("problem.html", status=status, caller=ask.caller, text=text)


async def _static(request: Request) -> Response:
    name = request.path_params["name"]
    media = _STATIC_TYPES.get(name)
    if media is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    # Small, and from a local disk.
    return FileResponse(_STATIC / name, media_type=media, headers={"cache-control": "max-age=300"})
