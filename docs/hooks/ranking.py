"""Which pages a search shows first: guides before the API reference, decisions last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_BOOST = {"api/": 0.5, "decisions/": 0.2}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set how much a page counts in a search, where not all pages count alike."""
    for folder, boost in _BOOST.items():
        if page.file.src_uri.startswith(folder):
            page.meta["search"] = {"boost": boost}
    return markdown
