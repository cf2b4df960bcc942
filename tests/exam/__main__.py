"""Put libraries through the exam, and write down their answers.

    PYTHONPATH=tests:examples python -m exam --json docs/exam/answers.json

Each library is asked every question, in processes of its own environment. Answers are written after
each question, so that a run can be interrupted; ``--only ours --questions same kills`` asks again
for these and keeps the others. `exam.page` makes docs/exam.md of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from exam.answers import Answer
from exam.candidate import Candidate
from exam.libraries import LIBRARIES, Library
from exam.questions import QUESTIONS, Question

_KILLS = ("kills", "server")  # questions that kill several times


def main() -> None:
    """Ask, and keep the answers."""
    names = [library.entry.rpartition(".")[2] for library in LIBRARIES]
    keys = [question.key for question in QUESTIONS]
    parser = argparse.ArgumentParser(
        prog="exam", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=names, default=names, help="libraries")
    parser.add_argument("--questions", nargs="*", choices=keys, default=keys)
    parser.add_argument("--kills", type=int, default=20, help="of trainers, and of servers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="answers; those in it are kept")
    given = parser.parse_args()
    found = _read(given.json)
    for library, name in zip(LIBRARIES, names, strict=True):
        if name in given.only:
            answers = found.setdefault(name, {"answers": {}})
            for question in QUESTIONS:
                if question.key in given.questions:
                    answers["answers"].pop(question.key, None)
            for fields in _examine(library, given.questions, given.kills, answers):
                found[name] = fields
                _write(given.json, found)


def _examine(library: Library, keys: list[str], kills: int, known: dict[str, Any]) -> Any:
    try:
        version = library.version()
    except Exception as error:  # noqa: BLE001 - what does not install is listed with the message
        yield {"version": "", "error": f"{type(error).__name__}: {error}", "answers": {}}
        return
    answers = dict(known["answers"])
    with (
        tempfile.TemporaryDirectory(prefix="exam-") as folder,
        Candidate(library, Path(folder), kills=kills) as candidate,
    ):
        for question in QUESTIONS:
            if question.key in keys:
                answers[question.key] = _asked(question, candidate)
                yield {"version": version, "answers": answers}


def _asked(question: Question, candidate: Candidate) -> dict[str, Any]:
    began = time.monotonic()
    try:
        answer = question.ask(candidate)
    except RuntimeError as error:
        answer = Answer(kind="failed", message=str(error))
    spent = time.monotonic() - began
    _show(f"{candidate.library.name}: {question.key}: {answer.text} ({spent:.0f} s)")
    if answer.message:
        _show(f"    {answer.message[:600]}")
    tried = {"kills": candidate.kills} if question.key in _KILLS else {}
    return {**answer.to_json(), **tried}


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")


def _show(line: str) -> None:
    print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
