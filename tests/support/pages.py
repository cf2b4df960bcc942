"""The code blocks of the pages of the documentation, as they are printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)$")
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code.

    Attributes:
        page: The page below the root of the repository.
        line: Where its first line stands, counted from 1.
        language: Of a fence; nothing for one without, and for a block by its indent.
        text: What it says.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """The beginning of its first line, which names it: line numbers do not last."""
        return self.text.splitlines()[0].strip()[:60]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block, as words, and the lines of output that are printed below it."""

    words: tuple[str, ...]
    output: tuple[str, ...] = ()


def pages() -> list[str]:
    """Return the README and all pages of ``docs/``."""
    found = sorted(path.relative_to(ROOT) for path in (ROOT / "docs").rglob("*.md"))
    return ["README.md", *map(str, found)]


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    return list(_blocks(page, (ROOT / page).read_text().splitlines()))


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = lines.index("```", at + 1)
            yield Block(page, at + 2, fence[1], _text(lines[at + 1 : end]))
            at = end + 1
        elif lines[at].startswith(_INDENT) and not (at and lines[at - 1]):
            end = at
            while end < len(lines) and (not lines[end] or lines[end].startswith(_INDENT)):
                end += 1
            yield Block(page, at + 1, "", _text([line[4:] for line in lines[at:end]]))
            at = end
        else:
            at += 1


def _text(lines: list[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def commands(text: str) -> list[Command]:
    """Return the commands of a block, or none if it holds anything but `headrace`.

    With a ``$`` before the first one, lines without are what the command above them prints.
    """
    told = text.startswith("$ ")
    found: list[Command] = []
    for line in text.replace("\\\n", " ").splitlines():
        if told and not line.startswith("$ "):
            last = found.pop()
            found.append(Command(last.words, (*last.output, line)))
            continue
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[:1] != ["headrace"]:
            return []
        found.append(Command(tuple(words[1:])))
    return found
