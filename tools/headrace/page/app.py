"""Route requests to views, identify callers, and report errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from headrace.errors import HeadraceError
from headrace.page.guard.forms import read_form
from headrace.page.guard.login import COOKIE, login, logout
from headrace.page.guard.middleware import HANDLERS, Guard
from headrace.page.site import Query, Site, ViewRequest
from headrace.page.views import VIEWS, View
from headrace.server.access.callers import Caller

VIEW_S: Final = 20.0
"""How long a view may take, for example to read from a store."""
EARLY_S: Final = 0.02
"""After this time a browser gets the head of a page. It takes longer to ask for the style sheet."""
VIEW_MARK: Final = "<!--view-->"
"""Follows the head in each page. What strangers chose is escaped, so the first one is ours."""
_THREADS: Final = 8
_STATIC: Final = Path(__file__).parent / "static"
_STATIC_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES: Final = {
    file.name: (file.read_bytes(), _STATIC_TYPES[file.suffix])
    for file in _STATIC.iterdir()
    if file.suffix in _STATIC_TYPES
}
_STATUS: Final = {
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "OUT_OF_RANGE": 400,
    "FAILED_PRECONDITION": 409,
    "PERMISSION_DENIED": 403,
    "UNAVAILABLE": 503,
}
_SERVER_ERROR: Final = 500

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
            Route(path, _endpoint(site, pool, *view), methods=["GET", "POST"])
            for path, view in {**VIEWS, "/{path:path}": (_nothing, "", "")}.items()
        ),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=HANDLERS), names=names)


def _endpoint(
    site: Site, pool: ThreadPoolExecutor, view: View, place: str, tab: str
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        caller = _caller(site, request)
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        if caller is None:
            return site.html("login.html", status=401, target=target, problem="")
        form = await read_form(request) if request.method == "POST" else {}
        query = Query({**request.query_params, **form})
        view_request = ViewRequest(
            site,
            caller,
            request.path_params,
            query,
            target,
            request.headers["host"],
            is_form=bool(form),
            place=place,
            tab=tab,
        )
        answer = asyncio.ensure_future(_timely(pool, view, view_request))
        # Programs, and scripts of the page, get the whole answer with its status.
        if place and not form and request.headers.get("sec-fetch-dest") == "document":
            await asyncio.wait([answer], timeout=EARLY_S)
            if not answer.done():
                return StreamingResponse(_in_two(view_request, answer), media_type="text/html")
        return await answer

    return endpoint


async def _in_two(request: ViewRequest, answer: Awaitable[Response]) -> AsyncIterator[bytes]:
    """Yield the head of a page, and when it is ready the rest, which may be an error."""
    head = bytes(request.html("base.html").body)
    yield head.partition(b"</main>")[0]
    yield bytes((await answer).body).partition(VIEW_MARK.encode())[2]


async def _timely(pool: ThreadPoolExecutor, view: View, request: ViewRequest) -> Response:
    try:
        async with asyncio.timeout(VIEW_S):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, _answer, view, request)
    except TimeoutError:
        return _error_page(
            request, 504, f"The view was not ready within {VIEW_S:.0f} seconds. Try again."
        )


def _nothing(request: ViewRequest) -> Response:
    return _error_page(request, 404, "This page has no such view. Start from the datasets.")


def _caller(site: Site, request: Request) -> Caller | None:
    token = site.sessions.token_of(request.cookies.get(COOKIE, ""))
    try:
        return site.access.caller([("authorization", f"Bearer {token}")] if token else [])
    except HeadraceError:
        return None


def _answer(view: View, request: ViewRequest) -> Response:
    """Return the response of a view, or an error page with what the caller may see."""
    try:
        return view(request)
    except HeadraceError as error:
        status = _STATUS.get(error.code, _SERVER_ERROR)
        _log.info("%r: %s", request.target[:200], error.message)
        text = request.site.without_urls(error).message
        has_dataset = error.reason != "DATASET_NOT_FOUND"
        return _error_page(request, status, text, has_dataset=has_dataset)
    except Exception:  # noqa: BLE001 - the boundary of a view: browsers see no traceback
        _log.exception("%r failed", request.target[:200])
        return _error_page(
            request,
            _SERVER_ERROR,
            "This is a bug in headrace. See the log of the page for details.",
        )


def _error_page(
    request: ViewRequest, status: int, text: str, *, has_dataset: bool = True
) -> Response:
    return request.html(
        "problem.html", status=status, code=status, text=text, has_dataset=has_dataset
    )


async def _static(request: Request) -> Response:
    content, media = _FILES.get(request.path_params["name"], (None, ""))
    if content is None:
        return Response("There is no such file.\n", 404, media_type="text/plain")
    return Response(content, media_type=media, headers={"cache-control": "max-age=300"})
