"""What all views of a page share: the datasets, who may look, how things are written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.responses import HTMLResponse, Response

from headrace.cli.show.texts import printable, size
from headrace.cli.stored.labels import StoredLabels
from headrace.errors import HeadraceError
from headrace.order import AnyOrder, Order, OrderSpec
from headrace.page.data.filtered import Filtered
from headrace.page.data.kept import Kept
from headrace.page.data.library import Library
from headrace.page.guard.sessions import Sessions
from headrace.page.live.watch import Watch
from headrace.page.runs.figures import Figures
from headrace.server.access.callers import Access, Caller
from headrace.server.front.hidden_paths import DatasetPlaces
from headrace.storage import Tokenizer

_FOLDER: Final = Path(__file__).parent

_ORDERS: Final = 16
_RUNS: Final = 4
"""Those of filters take up to 128 MiB each."""
_LABELS: Final = 4
"""Of 16 MiB at most each."""
_FIGURES: Final = 256


class Site:
    """One page.

    Args:
        library: Its datasets.
        access: Who may look.
        watch: Tells what the server does; None without a server.
        tokenizers: What makes texts of tokens again, by name.

    Attributes:
        sessions: Who has shown a token.
        orders: Orders that were looked at, by fingerprint and options.
        runs: Orders of runs with a filter, skipped samples or a mixture, by their digests.
        filtered: What filters keep.
        labels: Labels of datasets that were looked at, by fingerprint and column.
        figures: What orders cost, by all that they depend on.
    """

    def __init__(
        self,
        library: Library,
        access: Access,
        watch: Watch | None = None,
        tokenizers: Mapping[str, Tokenizer] | None = None,
    ) -> None:
        self.library = library
        self.tokenizers = dict(tokenizers or {})
        self.access = access
        self.watch = watch
        self.sessions = Sessions()
        self.orders: Kept[tuple[str, OrderSpec], Order] = Kept(_ORDERS)
        self.runs: Kept[Hashable, AnyOrder] = Kept(_RUNS)
        self.filtered = Filtered()
        self.labels: Kept[tuple[str, str], StoredLabels | None] = Kept(_LABELS)
        self.figures: Kept[Hashable, Figures] = Kept(_FIGURES)
        self._templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters.update(size=size, printable=printable, query=query_of)

    def told(self, error: HeadraceError) -> HeadraceError:
        """Return an error as those who look get it: where data lies is the operator's alone."""
        if self.access.is_open:
            return error
        places = DatasetPlaces()
        for url in self.library.urls():
            places.add(url)
        return places.without(error)

    def html(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a template as an answer."""
        text = self._templates.get_template(template).render(
            has_live=self.watch is not None, has_login=not self.access.is_open, **context
        )
        return HTMLResponse(text, status)


class Query(dict[str, str]):
    """The query of a request; a name that it lacks is the empty text."""

    def __missing__(self, name: str) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, by somebody who may look.

    Attributes:
        site: The page.
        caller: Who looks.
        path: Parts of the path, by name.
        query: The query, the last value of each name.
        target: Path and query, as they came.
        is_form: Whether a form was sent, whose fields are in the query.
    """

    site: Site
    caller: Caller
    path: Mapping[str, str]
    query: Query
    target: str
    is_form: bool = False

    def html(self, template: str, *, status: int = 200, **context: Any) -> Response:
        """Return a template as an answer, with what every view shows."""
        return self.site.html(
            template, status=status, caller=self.caller, query=self.query, **context
        )

    def number(self, name: str, default: int, *, low: int = 0, high: int = (1 << 62) - 1) -> int:
        """Return a number of the query, moved into a range; the default where there is none."""
        text = self.query[name].strip()
        if not text.isdecimal() or len(text) > 19:  # noqa: PLR2004 - digits of 2^62
            return default
        return min(max(int(text), low), high)


def query_of(values: Mapping[str, Any], **changed: Any) -> str:
    """Write a query with some values changed; None leaves one out."""
    return urlencode({k: v for k, v in {**values, **changed}.items() if v is not None})
