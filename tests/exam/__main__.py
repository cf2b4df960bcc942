"""Put libraries through the exam, and write down their answers.

    PYTHONPATH=tests:examples python -m exam --json docs/exam/answers.json

Each library is asked every question, in processes of its own environment, several libraries at a
time. Answers are written after each question, so that a run can be interrupted; ``--only ours
--questions same kills`` asks again for these and keeps the others. `exam.page` makes docs/exam.md
of them, and `exam.compare` says whether two runs agree.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from exam.answers import Answer
from exam.candidate import Candidate
from exam.libraries import LIBRARIES, Library
from exam.questions import QUESTIONS, Question

_AT_ONCE = 2  # what waits for one library's timeouts is the other's processor
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
    parser.add_argument("--at-once", type=int, default=_AT_ONCE, help="libraries")
    parser.add_argument(
        "--hung-s", type=float, default=60.0, help="without a batch; more for a busy machine"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="answers; those in it are kept")
    given = parser.parse_args()
    began = time.monotonic()
    book = _Book(given.json)
    chosen = [each for each in zip(LIBRARIES, names, strict=True) if each[1] in given.only]
    # Those that take longest begin first, so that none of them is left alone at the end.
    chosen.sort(key=lambda each: -each[0].minutes)
    with ThreadPoolExecutor(given.at_once) as pool:
        asked = [pool.submit(_examine, library, name, given, book) for library, name in chosen]
        for each in asked:
            each.result()
    _show(f"all questions: {(time.monotonic() - began) / 60:.1f} minutes")


class _Book:
    """The answers so far, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path is not None and path.exists():
            self._found = json.loads(path.read_text())
        self._lock = threading.Lock()

    def forget(self, name: str, keys: Sequence[str]) -> None:
        """Drop what is asked again."""
        for key in keys:
            self._found.get(name, {"answers": {}})["answers"].pop(key, None)

    def keep(self, name: str, version: str, answers: dict[str, Any], error: str = "") -> None:
        """Put answers beside those that are there."""
        with self._lock:
            known = self._found.get(name, {}).get("answers", {})
            self._found[name] = {"version": version, "answers": {**known, **answers}}
            if error:
                self._found[name]["error"] = error
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.write_text(json.dumps(self._found, indent=1) + "\n")


def _examine(library: Library, name: str, given: argparse.Namespace, book: _Book) -> None:
    book.forget(name, given.questions)
    try:
        version = library.version()
    except Exception as error:  # noqa: BLE001 - what does not install is listed with the message
        book.keep(name, "", {}, f"{type(error).__name__}: {error}")
        return
    with (
        tempfile.TemporaryDirectory(prefix="exam-") as folder,
        Candidate(library, Path(folder), kills=given.kills, hung_s=given.hung_s) as candidate,
    ):
        for question in QUESTIONS:
            if question.key in given.questions:
                book.keep(name, version, {question.key: _asked(question, candidate)})


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
    return {**answer.to_json(), **tried, "spent_s": round(spent, 1)}


def _show(line: str) -> None:
    print(f"{time.strftime('%X')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
