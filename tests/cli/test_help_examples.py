"""The examples that `--help` prints are commands that the command line takes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest

from headrace.cli.group import group
from support.page_world import parsed

_FILES = {
    "ca.pem": "",
    "token": "a-secret-of-16-characters",
    "headrace.yaml": "datasets: {}\n",
    "tokenizer.json": "{}",
}
_NAMES = ["", *group.list_commands(click.Context(group))]
_WITHOUT = {"bench"}  # it takes no argument: there is nothing to show


def _help(name: str) -> str:
    """What a terminal of 80 columns shows."""
    context = click.Context(group, info_name="headrace", terminal_width=80)
    if not name:
        return group.get_help(context)
    command = group.get_command(context, name)
    assert command is not None
    return command.get_help(click.Context(command, info_name=name, parent=context))


def _examples(name: str) -> list[str]:
    text = _help(name).partition("\nOptions:")[0]
    return re.findall(r"^  (headrace (?:.*\\\n)*.*)$", text, re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in _NAMES if name not in _WITHOUT])
def test_each_example_is_taken_as_it_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copied from a terminal: the command is there, its options and arguments are understood."""
    monkeypatch.chdir(tmp_path)
    for file, content in _FILES.items():
        Path(file).write_text(content)
    Path("mixture.json").write_text(json.dumps({"datasets": [{"name": "web"}]}))
    found = _examples(name)

    assert found, "no example"
    commands = [shlex.split(example)[1:] for example in found]
    assert not name or name in {words[0] for words in commands}
    for words in commands:
        parsed(tuple(words))


@pytest.mark.parametrize("name", _NAMES)
def test_no_example_is_wrapped(name: str) -> None:
    """Blanks within a line are what is left of a line that was broken on purpose."""
    lines = [line for example in _examples(name) for line in example.splitlines()]

    assert [] == [line for line in lines if re.search(r"\S  ", line.removesuffix("\\"))]


@pytest.mark.parametrize("name", _NAMES)
def test_ranges_of_numbers_have_ends(name: str) -> None:
    """Not `x<=None`, which click writes for a range without any."""
    assert "None]" not in _help(name)


def test_the_list_of_commands_has_whole_sentences() -> None:
    """A terminal of 80 columns has room for the first sentence of each help."""
    assert "..." not in _help("").partition("\nCommands:")[2]
