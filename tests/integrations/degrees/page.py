"""Write what was found into docs/integrations/index.md.

PYTHONPATH=tests:examples python -m integrations.degrees.page docs/integrations/degrees.json \
  docs/integrations/index.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from exam.answers import Answer
from exam.page import quotable
from integrations.degrees.frameworks import FRAMEWORKS
from support.marked import replace_marked

BEGIN = "<!-- degrees: written by tests/integrations/degrees/page.py -->"
END = "<!-- end of degrees -->"


def main() -> None:
    """Replace what stands between the marks of a page."""
    answers, page = Path(sys.argv[1]), Path(sys.argv[2])
    replace_marked(page, BEGIN, END, written(json.loads(answers.read_text())))


def written(found: Mapping[str, Any]) -> str:
    """Return the table, and below it what was said by those that refused."""
    asked = [(name, loader) for name in found for loader in found[name]["loaders"]]
    rows = [_row(found, name, loader) for name, loader in asked]
    said = [said for name, loader in asked for said in _said(found, name, loader)]
    head = [
        "| framework | loader | on 4 ranks | losses | on 4, 2 and 3 ranks |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, *([""] if said else []), *said])


def _row(found: Mapping[str, Any], name: str, loader: str) -> str:
    framework, fields = FRAMEWORKS[name], found[name]["loaders"][loader]
    same, degrees = (Answer.from_json(fields[key]) for key in ("same", "degrees"))
    losses = "same" if fields["equal_losses"] else "differ"
    cells = [
        f"{framework.title} {found[name]['version']}",
        framework.loaders[loader],
        same.text,
        losses if same.difference else "–",  # noqa: RUF001 - as in docs/exam.md
        degrees.text,
    ]
    return f"| {' | '.join(cells)} |"


def _said(found: Mapping[str, Any], name: str, loader: str) -> Iterator[str]:
    fields = found[name]["loaders"][loader]
    messages = dict.fromkeys(fields[key]["message"] for key in ("same", "degrees"))
    for message in messages:
        if message:
            framework = FRAMEWORKS[name]
            yield f"- {framework.title}, {framework.loaders[loader]}: `{quotable(message)}`"


if __name__ == "__main__":
    main()
