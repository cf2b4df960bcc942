"""The page of the command line: what each command prints with ``--help``, letter for letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.group import group

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

_MARK = "<!-- the help of every command -->"
_WIDTH = 80  # as wide as a page shows


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Put the help texts where the page asks for them."""
    if page.file.src_uri != "cli.md":
        return markdown
    if _MARK not in markdown:
        raise ValueError(f"docs/cli.md has no line {_MARK!r}; the help texts go there")
    return markdown.replace(_MARK, "\n\n".join(_sections()))


def _sections() -> list[str]:
    top = click.Context(group, info_name="headrace", terminal_width=_WIDTH)
    sections = [_section("headrace", top)]
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        assert command is not None
        context = click.Context(command, top, info_name=name, terminal_width=_WIDTH)
        sections.append(_section(f"headrace {name}", context))
    return sections


def _section(title: str, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{context.get_help()}\n```"
