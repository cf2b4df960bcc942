"""The state that all views of a page share: datasets, callers and templates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import gmtime, strftime
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse, Response

from headrace.caches import LruCache
from headrace.cli.show.texts import printable, size
from headrace.cli.stored.labels import StoredLabels
from headrace.cli.stored.order_cost import OrderCost
from headrace.errors import HeadraceError
from headrace.order import Order, OrderSpec
from headrace.page.data.library import Library
from headrace.page.data.partial_reads import Histogram
from headrace.page.guard.middleware import STYLE
from headrace.page.guard.sessions import Sessions
from headrace.page.live.watch import Watch
from headrace.server.access.callers import Access, Caller
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.storage import Tokenizer

_FOLDER: Final = Path(__file__).parent

_ORDERS: Final = 16
_LABELS: Final = 4
"""Labels of at most 16 MiB each."""
_COSTS: Final = 256
_OVERVIEWS: Final = 64
"""Of at most 60 columns with 32 bars each."""


class Site:
    """The state of a page.

    Args:
        library: The datasets.
        access: Authenticates callers.
        watch: Reports the server's state; None without a server.
        tokenizers: The tokenizers that turn tokens into text, by name.
        serves: The address at which the server serves datasets; empty without a server.

    Attributes:
        sessions: The sessions of callers.
        orders: Orders by fingerprint and options.
        labels: Labels of datasets by fingerprint and column.
        costs: The costs of orders, by all that they depend on.
        histograms: The histograms of all columns, by fingerprint.
    """

    def __init__(
        self,
        library: Library,
        access: Access,
        watch: Watch | None = None,
        tokenizers: Mapping[str, Tokenizer] | None = None,
        serves: str = "",
    ) -> None:
        self.library = library
        self.tokenizers = dict(tokenizers or {})
        self.access = access
        self.watch = watch
        self.sessions = Sessions()
        self.orders: LruCache[tuple[str, OrderSpec], Order] = LruCache(_ORDERS)
        self.labels: LruCache[tuple[str, str], StoredLabels | None] = LruCache(_LABELS)
        self.costs: LruCache[Hashable, OrderCost] = LruCache(_COSTS)
        self.histograms: LruCache[str, list[Histogram]] = LruCache(_OVERVIEWS)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(size=size, printable=printable, query=query_of, clock=_clock)
        self._templates.globals.update(
            version=version("headrace"),
            serves=serves,
            has_live=watch is not None,
            zip=zip,
            style=STYLE,
            icon=(_FOLDER / "static" / "icon.svg").read_text("utf-8"),
        )

    def without_urls(self, error: HeadraceError) -> HeadraceError:
        """Return an error without the URLs of datasets, which only operators may see."""
        if self.access.is_open:
            return error
        places = DatasetPlaces()
        for url in self.library.urls():
            places.add(url)
        return places.without(error)

    def html(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a rendered template as a response."""
        text = self._templates.get_template(template).render(
            has_login=not self.access.is_open, **context
        )
        return HTMLResponse(text, status)


class Query(dict[str, str]):
    """The query of a request, in which missing values are empty texts."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """A request by an authenticated caller.

    Attributes:
        site: The page.
        caller: The caller.
        path: The parts of the path, by name.
        query: The query and the form, with the last value of each name.
        target: The path and the query, as received.
        host: The host that the browser asked, as received and checked.
        is_form: Whether a form was sent.
        place: The entry of the header that leads to the view; empty for a part of a page.
        tab: The tab of its dataset, if it has one.
    """

    site: Site
    caller: Caller
    path: Mapping[str, str]
    query: Query
    target: str
    host: str = ""
    is_form: bool = False
    place: str = ""
    tab: str = ""

    def html(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a rendered template as a response, with the parts common to all views."""
        return self.site.html(
            template,
            status=status,
            caller=self.caller,
            query=self.query,
            host=self.host,
            place=self.place,
            tab=self.tab,
            name=self.path.get("name", ""),
            **context,
        )

    def number(self, name: str, default: int, *, low: int = 0, high: int = (1 << 62) - 1) -> int:
        """Return a number of the query, clipped to a range; the default if it is missing."""
        text = self.query[name].strip()
        if not text.isdecimal() or len(text) > 19:  # noqa: PLR2004 - digits of 2^62
            return default
        return min(max(int(text), low), high)


def _clock(wall: float) -> str:
    return strftime("%H:%M:%S", gmtime(wall))


def query_of(values: Mapping[str, Any], **changed: Any) -> str:
    """Return the query as text with some values changed; None removes a value."""
    return urlencode({k: v for k, v in {**values, **changed}.items() if v is not None})
