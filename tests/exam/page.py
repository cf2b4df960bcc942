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

BEGIN, END = "<!-- answers: written by tests/exam/page.py -->", "<!-- end of answers -->"
_MESSAGE = 300  # characters of what a library says
_NOT_ASKED = "not asked"

Found = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Replace what stands between the marks of a page."""
    answers, page = Path(sys.argv[1]), Path(sys.argv[2])
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    found = json.loads(answers.read_text())
    page.write_text(f"{before}{BEGIN}\n\n{written(found)}\n\n{END}{after}")


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
            yield f"| {question.title} | " + " | ".join(cells) + " |"
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
    if seen := _seen(about):
        yield f"\nSeen: {seen}."
    if library.remark:
        yield f"\n{library.remark}"
    yield ""
    for said, titles in _messages(about).items():
        yield f"- {', '.join(titles)}: `{said}`"
    if "error" in about:
        yield f"- not installed: `{about['error'][:_MESSAGE]}`"
    yield ""


def _messages(about: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what was said, each with the questions that it was said to."""
    found: dict[str, list[str]] = {}
    for question in QUESTIONS:
        fields = about.get("answers", {}).get(question.key)
        if fields and fields["message"]:
            said = " ".join(fields["message"].split())[:_MESSAGE].replace("`", "'")
            found.setdefault(said, []).append(question.title)
    return found


def _seen(about: Mapping[str, Any]) -> str:
    """Return the answers, each with the questions that it was given to."""
    found: dict[str, list[str]] = {}
    for question in QUESTIONS:
        cell = _cell(about, question.key)
        if cell not in (_NOT_ASKED, "not installed"):
            found.setdefault(cell, []).append(question.title)
    return "; ".join(f"**{cell}**: {', '.join(titles)}" for cell, titles in found.items())


def _name(library: Library) -> str:
    return library.entry.rpartition(".")[2]


if __name__ == "__main__":
    main()
