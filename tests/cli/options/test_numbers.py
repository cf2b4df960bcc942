"""Numbers on the command line are finite."""

from __future__ import annotations

from importlib.metadata import entry_points

import click
import pytest

from headrace.cli.options.types import DURATION, WEIGHTED_URL, NumberType

_COMMANDS: dict[str, click.Command] = {
    found.name: found.load() for found in entry_points(group="headrace.commands")
}
_NUMBERS = [
    pytest.param(option, id=f"{name} {option.opts[0]}")
    for name, command in _COMMANDS.items()
    for option in command.params
    if isinstance(option.type, click.types.FloatParamType | click.FloatRange)
]


@pytest.mark.parametrize("option", _NUMBERS)
def test_no_option_takes_a_number_that_is_none(option: click.Parameter) -> None:
    """A limit of `nan` would never be missed, and a wait of `inf` would never end."""
    for text in ("nan", "inf", "-inf"):
        with pytest.raises(click.BadParameter):
            option.type.convert(text, option, None)


def test_numbers_of_all_commands_are_looked_at() -> None:
    """The list of options above is not empty for want of commands."""
    assert {"loadtest", "read", "doctor", "bench", "serve"} <= {
        str(param.id).partition(" ")[0] for param in _NUMBERS
    }


def test_a_number_in_range_is_taken() -> None:
    """The range is click's."""
    assert 0.5 == NumberType(min=0).convert("0.5", None, None)
    with pytest.raises(click.BadParameter, match=">=0"):
        NumberType(min=0).convert("-1", None, None)


@pytest.mark.parametrize("text", ["s3://bucket/d=nan", "s3://bucket/d=inf"])
def test_weights_are_finite(text: str) -> None:
    """A dataset whose weight is no number has no share of a mixture."""
    with pytest.raises(click.BadParameter, match="is not a weight"):
        WEIGHTED_URL.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/year=2026/d", ("s3://bucket/year=2026/d", None)),
        ("s3://bucket/year=2026/", ("s3://bucket/year=2026/", None)),
        ("s3://bucket/year=2026/d=0.5", ("s3://bucket/year=2026/d", 0.5)),
    ],
)
def test_partitions_in_paths_are_no_weights(text: str, expected: tuple[str, float | None]) -> None:
    """A weight has no slash."""
    assert expected == WEIGHTED_URL.convert(text, None, None)


def test_times_are_finite() -> None:
    """A time with this many digits would be infinite."""
    with pytest.raises(click.BadParameter, match="is not a time"):
        DURATION.convert("9" * 400 + "d", None, None)
