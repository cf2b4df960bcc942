"""Compare two runs of the exam, and put their answers together.

    PYTHONPATH=tests:examples python -m exam.compare ONE OTHER docs/exam/answers.json docs/exam.md

ONE and OTHER are what ``python -m exam --json`` wrote. Times are not compared. An answer that is
another one in the other run stands in the matrix as a range or as *sometimes*.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exam.answers import Answer
from exam.libraries import LIBRARIES
from exam.questions import QUESTIONS
from support.marked import replace_marked

BEGIN, END = "<!-- compared: written by tests/exam/compare.py -->", "<!-- end of compared -->"

_NONE = {"not offered", "not asked", "no server"}
"""Answers without a run that could differ; they are not counted where both say so."""

Found = Mapping[str, Mapping[str, Any]]


def main() -> None:
    """Write the answers of both, and how far they agree."""
    one, other = (json.loads(Path(path).read_text()) for path in sys.argv[1:3])
    answers, page = Path(sys.argv[3]), Path(sys.argv[4])
    told = compared(one, other)
    answers.write_text(json.dumps(merged(one, other), indent=1) + "\n")
    replace_marked(page, BEGIN, END, told)
    print(told)


def merged(one: Found, other: Found) -> dict[str, Any]:
    """Return the answers of one run, each with that of the other where it differs."""
    found = {name: {**about, "answers": {**about["answers"]}} for name, about in one.items()}
    for name, key in _differing(one, other):
        fields = one[name]["answers"][key]
        found[name]["answers"][key] = {**fields, "others": [other[name]["answers"][key]]}
    return found


def compared(one: Found, other: Found) -> str:
    """Return how many answers agree."""
    both = [
        (name, key)
        for name, key in _asked_twice(one, other)
        if not {one[name]["answers"][key]["kind"], other[name]["answers"][key]["kind"]} <= _NONE
    ]
    differ = list(_differing(one, other))
    names = {library.entry.rpartition(".")[2]: library.name for library in LIBRARIES}
    asked = dict.fromkeys(names[name] for name, _ in both)
    who = "All libraries" if len(asked) == len(names) else ", ".join(asked)
    agree = f"{len(both) - len(differ)} of {len(both)} answers were the same in both"
    return f"{who} were asked in two runs. {agree}."


def _differing(one: Found, other: Found) -> Iterator[tuple[str, str]]:
    for name, key in _asked_twice(one, other):
        if _text(one[name]["answers"][key]) != _text(other[name]["answers"][key]):
            yield name, key


def _asked_twice(one: Found, other: Found) -> Iterator[tuple[str, str]]:
    """Yield library and question of all answers that both have, in the order of the matrix."""
    for library in LIBRARIES:
        name = library.entry.rpartition(".")[2]
        for question in QUESTIONS:
            if all(question.key in each.get(name, {}).get("answers", {}) for each in (one, other)):
                yield name, question.key


def _text(fields: dict[str, Any]) -> str:
    return Answer.from_json(fields).text


if __name__ == "__main__":
    main()
