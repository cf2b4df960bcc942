"""The Tab key completes what docs/cli.md says that it does."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from support.command import HEADRACE, run

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def _completed(words: str) -> list[str]:
    count = str(len(words.split(" ")) - 1)
    variables = {"COMP_WORDS": words, "COMP_CWORD": count, "_HEADRACE_COMPLETE": "bash_complete"}
    done = run(environment={**os.environ, **variables})
    assert (0, "") == (done.returncode, done.stderr)
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("headrace re", ["read"]),
        ("headrace read --shuffle-b", ["--shuffle-bytes"]),
        ("headrace read --end ", ["drop_last", "uneven", "pad"]),
    ],
)
def test_commands_options_and_values_are_completed(words: str, wanted: list[str]) -> None:
    """One word at a time, as far as it is typed."""
    assert wanted == _completed(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_lines_of_the_page_make_a_shell_complete(shell: str) -> None:
    """Each asks for the script of its shell; bash takes what it gets."""
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {shell}"))
    (variable,) = re.findall(r"_HEADRACE_COMPLETE=\w+", row)
    name, _, value = variable.partition("=")

    script = run(environment={**os.environ, name: value}).stdout

    assert f"_HEADRACE_COMPLETE={shell}_complete" in script
    if shell == "bash":
        line = row.split("`")[3].replace(" headrace)", f" {HEADRACE})")
        done = subprocess.run(
            ["bash", "-c", f"{line}; complete -p headrace"],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert (0, "") == (done.returncode, done.stderr)
        assert "_headrace_completion" in done.stdout
