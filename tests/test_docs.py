"""The documentation is complete: every public name and every page has its place."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("package", ["client", "converter", "storage", "server", "order", "errors"])
def test_the_api_reference_names_every_public_name_once(package: str) -> None:
    """What a package exports is what its page of the API reference lists."""
    page = (DOCS / "api" / f"{package}.md").read_text()

    listed = re.findall(rf"^::: headrace\.{package}\.(\w+)$", page, re.MULTILINE)

    assert sorted(import_module(f"headrace.{package}").__all__) == sorted(listed)


def test_every_page_is_in_the_navigation() -> None:
    """A page that nobody can find is no page."""
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}

    nav = (ROOT / "mkdocs.yml").read_text().split("nav:")[1].split("validation:")[0]

    assert pages == _leaves(yaml.safe_load(nav))


def test_every_decision_is_in_the_table_of_decisions() -> None:
    """The first page of the decisions leads to each of them."""
    decisions = {path.name for path in (DOCS / "decisions").glob("*.md")} - {"index.md"}

    table = (DOCS / "decisions" / "index.md").read_text()

    assert decisions == set(re.findall(r"\]\((?!\.\.)([\w-]+\.md)\)", table))


def _leaves(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    children = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(children, list) or hasattr(children, "__iter__")
    return {leaf for child in children for leaf in _leaves(child)}
