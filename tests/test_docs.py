"""The documentation is complete: every public name and every page has its place."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

_SPECIFICATIONS = {"augmentation.md", "format.md", "order.md", "protocol.md", "ring.md"}
_WORDS_A_PAGE = 900
_WORDS_IN_ALL = 45_000
_NO_PROSE = re.compile(
    r"""
    ^<!--\ (?P<part>\w+):\ written\ by\ .*?^<!--\ end\ of\ (?P=part)\ -->$  # by a script
    | <!-- .*? -->
    | ^```\w*$ .*? ^```$
    | (?<=\n\n) (?:\ {4}[^\n]*\n+)+  # a block by its indent
    | ^(?:\||:::) [^\n]*$  # a row of a table, a name of the API reference
    | (?<=\]) \([^)]*\)  # where a link leads
    """,
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


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


def test_every_recipe_is_on_the_site() -> None:
    """A page shows each of them, by the mark that docs/hooks/programs.py replaces."""
    page = (DOCS / "recipes.md").read_text()

    shown = re.findall(r"^<!-- (examples/recipes/\w+\.py) -->$", page, re.MULTILINE)

    programs = (ROOT / "examples" / "recipes").glob("*.py")
    assert sorted(str(path.relative_to(ROOT)) for path in programs) == sorted(shown)


def test_every_decision_is_in_the_table_of_decisions() -> None:
    """The first page of the decisions leads to each of them."""
    decisions = {path.name for path in (DOCS / "decisions").glob("*.md")} - {"index.md"}

    table = (DOCS / "decisions" / "index.md").read_text()

    assert decisions == set(re.findall(r"\]\((?!\.\.)([\w-]+\.md)\)", table))


def test_a_page_is_short() -> None:
    """A page answers one question in at most 900 words; what a specification takes, it takes."""
    words = _words()

    assert {} == {page: count for page, count in words.items() if count > _WORDS_A_PAGE}


def test_all_pages_can_be_read() -> None:
    """An afternoon is enough for all of them, with the decisions."""
    assert sum(_words().values()) <= _WORDS_IN_ALL


def test_words_are_those_of_prose() -> None:
    """Neither tables nor code count, nor where links lead, nor what scripts write."""
    text = (
        "# A title\n\nTwo [words of a link](page.md#there), `code` and 1 number.\n\n"
        "```python\nnot = counted\n```\n\n| not | counted |\n|---|---|\n\n"
        "    not counted\n\n    nor this\n\n- an item\n\n"
        "<!-- figures: written by a script -->\n\nnot counted\n\n<!-- end of figures -->\n\nEnd.\n"
    )

    assert 14 == _count(text)


def _words() -> dict[str, int]:
    paths = {str(path.relative_to(DOCS)): path for path in DOCS.rglob("*.md")}
    return {
        name: _count(path.read_text())
        for name, path in paths.items()
        if name not in _SPECIFICATIONS
    }


def _count(text: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in _NO_PROSE.sub("", text).split())


def _leaves(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    children = nav.values() if isinstance(nav, dict) else nav
    assert isinstance(children, list) or hasattr(children, "__iter__")
    return {leaf for child in children for leaf in _leaves(child)}
