"""Programs of `examples/` on the site: a page names them, and the build puts them in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

_MARK = re.compile(r"^<!-- (examples/\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Replace each line that names a program or a notebook by what is in it."""
    root = Path(config.docs_dir).parent

    def content(found: re.Match[str]) -> str:
        path = root / found[1]
        if not path.is_file():
            raise PluginError(f"{page.file.src_uri} names {found[1]}, which is not there")
        return _notebook(path) if path.suffix == ".ipynb" else _code(path.read_text("utf-8"))

    return _MARK.sub(content, markdown)


def _notebook(path: Path) -> str:
    """Return the cells of a notebook, without its title, which the page has."""
    cells = [
        ("".join(cell["source"]), cell["cell_type"] == "code")
        for cell in json.loads(path.read_text("utf-8"))["cells"]
    ]
    shown = "\n\n".join(_code(source) if is_code else source for source, is_code in cells)
    return re.sub(r"\A# [^\n]*\n", "", shown)


def _code(source: str) -> str:
    return f"```python\n{source.rstrip()}\n```"
