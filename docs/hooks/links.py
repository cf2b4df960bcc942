"""Where links lead: out of `docs/` to the repository, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

_ASKS_OTHERS = re.compile(
    r"""<(?:script|img|iframe)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|icon))[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
)
_OUTWARD = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[^)]+)\)")


def on_page_markdown(markdown: str, config: MkDocsConfig, **_: object) -> str:
    """Rewrite links such as ``../deploy/README.md`` to the repository's web page."""
    assert config.repo_url
    return _OUTWARD.sub(rf"]({config.repo_url.rstrip('/')}/blob/main/\g<path>)", markdown)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Refuse a page that would ask anybody else for a script, a style, a font or a picture."""
    asked = _ASKS_OTHERS.search(output)
    if asked:
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {asked[0]!r}")
    # By this mark the theme's script asks GitHub for stars and releases, in each reader's browser.
    return output.replace(' data-md-component="source"', "")
