"""Errors on the command line name its options, not the parameters of Python's functions."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from headrace.cli.group import run
from headrace.cli.show.option_names import in_options


def _command(name: str) -> click.Command:
    (found,) = entry_points(group="headrace.commands", name=name)
    command = found.load()
    assert isinstance(command, click.Command)
    return command


@pytest.mark.parametrize(
    ("command", "text", "shown"),
    [
        ("index", "with SourceOptions(missing_as_null=True).", "with --missing-as-null."),
        ("index", "`source: {missing_as_null: true}`", "`source: {missing_as_null: true}`"),
        ("convert", "mode='overwrite' or mode='append'", "--mode overwrite or --mode append"),
        ("convert", "label='first', 'last' or 'none'", "--label first, last or none"),
        ("convert", "use format='mds' or hashes=", "use --write mds or --hashes"),
        ("convert", "spark is given for csv", "--master is given for csv"),
        ("convert", "the mode is given", "the mode is given"),
        ("read", "shuffle=False, ramp=False, end='pad'", "--no-shuffle, --no-ramp, --end pad"),
        ("read", "use where=, or Access(auth=…)", "use --where, or Access(auth=…)"),
        ("read", "`where=` and a-where=1", "`where=` and a-where=1"),
        ("read", "steps=[Resize(2)], columns=['x']", "steps=[Resize(2)], columns=['x']"),
        ("list", "give columns=['x']", "give columns=['x']"),
    ],
)
def test_parameters_become_options(command: str, text: str, shown: str) -> None:
    """What the command does not have stays, and so does what is not a parameter."""
    assert shown == in_options(text, _command(command))


def test_what_a_user_typed_is_shown_as_typed() -> None:
    """A column may have the name of an option."""
    text = "the filter 'epoch=3 and' ends too soon; leave where= out"
    typed = ("read", "HOST", "NAME", "--where", "epoch=3 and")

    assert text.replace("where=", "--where") == in_options(text, _command("read"), typed)


def test_a_command_says_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the advice of a conversion to a place that is taken."""
    (tmp_path / "a.csv").write_text("a\n1\n")
    arguments = ["convert", str(tmp_path / "a.csv"), str(tmp_path / "d")]
    assert 0 == run(arguments)

    assert 0 < run(arguments)
    assert "with --mode overwrite or --mode append" in capsys.readouterr().err
