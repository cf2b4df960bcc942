"""Which pages a search shows first: guides before the reference, then decisions and the exam."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_REFERENCE = ("api/", "format.md", "order.md", "protocol.md", "ring.md")
_BOOST = dict.fromkeys(_REFERENCE, 0.5) | {"decisions/": 0.2, "exam.md": 0.2}


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Set how much a page counts in a search, where not all pages count alike."""
    for start, boost in _BOOST.items():
        if page.file.src_uri.startswith(start):
            page.meta["search"] = {"boost": boost}
    return markdown
