"""Write the answers of an exam into docs/exam.md.

PYTHONPATH=tests:examples python -m exam.page docs/exam/answers.json docs/exam.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exam.answers import Answer, together
from exam.libraries import LIBRARIES, Library
from exam.questions import QUESTIONS
from support.marked import replace_marked

BEGIN, END = "<!-- answers: written by tests/exam/page.py -->", "<!-- end of answers -->"
_MESSAGE = 160  # characters of what a library says
_NOT_ASKED = "not asked"
_UNASKED = (_NOT_ASKED, "not offered")
_NO_WAY = ("not offered", "no server")
_PLAIN = {"it packs no documents into rows", "its entry reads local files"}
"""Reasons that many libraries share; the page gives them once."""

Found = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Replace what stands between the marks of a page."""
    answers, page = Path(sys.argv[1]), Path(sys.argv[2])
    replace_marked(page, BEGIN, END, written(json.loads(answers.read_text())))


def written(found: Found) -> str:
    """Return the matrix, and for each library what it promises and what it said."""
    asked = [library for library in LIBRARIES if _name(library) in found]
    about = [line for library in asked for line in _about(found, library)]
    return "\n".join([*_matrix(found, asked), "", *about]).strip()


def _matrix(found: Found, asked: list[Library]) -> Iterator[str]:
    yield "| | " + " | ".join(library.name for library in asked) + " |"
    yield "|---|" + "---|" * len(asked)
    for question in QUESTIONS:
        cells = [_cell(found[_name(library)], question.key) for library in asked]
        if any(cell != _NOT_ASKED for cell in cells):
            short = ("–" if cell in _NO_WAY else cell for cell in cells)  # noqa: RUF001
            yield f"| {question.title} | " + " | ".join(short) + " |"
    firsts = [_first_s(found[_name(library)]) for library in asked]
    yield "| seconds from a resume to the first batch | " + " | ".join(firsts) + " |"


def _cell(about: Mapping[str, Any], key: str) -> str:
    if "error" in about:
        return "not installed"
    fields = about["answers"].get(key)
    if fields is None:
        return _NOT_ASKED
    answers = [Answer.from_json(each) for each in (fields, *fields.get("others", []))]
    text = together(answers)
    if answers[0].difference is not None and fields.get("kills"):
        return f"{text} ({fields['kills']} kills)"
    return text


def _first_s(about: Mapping[str, Any]) -> str:
    fields = about.get("answers", {}).get("same")
    return f"{fields['first_s']:.1f}" if fields and fields["first_s"] else ""


def _about(found: Found, library: Library) -> Iterator[str]:
    about = found[_name(library)]
    yield f"### {library.name} {about['version']}"
    yield ""
    yield f"Promise, [in our words]({library.page}): {library.promise}"
    if library.remark:
        yield f"\n{library.remark}"
    yield ""
    for said, titles in _messages(about).items():
        yield f"- {', '.join(titles)}: `{said}`"
    if reasons := _not_offered(about):
        yield f"- not offered or not asked: `{'`, `'.join(reasons)}`"
    if "error" in about:
        yield f"- not installed: `{about['error'][:_MESSAGE]}`"
    yield ""


def _messages(about: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what was said to questions that were asked, each with these questions."""
    found: dict[str, list[str]] = {}
    for question in QUESTIONS:
        if (said := _said(about, question.key)) and _cell(about, question.key) not in _UNASKED:
            found.setdefault(said, []).append(question.title)
    return found


def _not_offered(about: Mapping[str, Any]) -> list[str]:
    """Return why a library was not asked some questions; the matrix shows which."""
    unasked = [each.key for each in QUESTIONS if _cell(about, each.key) in _UNASKED]
    said = dict.fromkeys(_said(about, key) for key in unasked)
    return [reason for reason in said if reason and reason not in _PLAIN]


def _said(about: Mapping[str, Any], key: str) -> str:
    fields = about.get("answers", {}).get(key)
    return quotable(fields["message"]) if fields else ""


def quotable(message: str) -> str:
    """Return the beginning of a message as one line, which can stand between backticks."""
    said = " ".join(message.split())
    cut = f"{said[:_MESSAGE].rstrip()} …" if len(said) > _MESSAGE else said
    return cut.replace("`", "'")


def _name(library: Library) -> str:
    return library.entry.rpartition(".")[2]


if __name__ == "__main__":
    main()
