"""Tests of options that are made from the fields of objects."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from headrace.cli import loadtest, order, read
from headrace.cli.options.objects import ObjectCommand, object_options, setting_options
from headrace.client import Order


@dataclass(frozen=True)
class Bread:
    """What is baked.

    Attributes:
        flour: The flour, such as ``rye``; None for wheat. Rye rises.
        size_bytes: How large it is, of `flour`.
        crust: Whether it has a crust.
        rest_s: How long it rests.
    """

    flour: Literal["rye", "spelt"] | None = None
    size_bytes: int = 2 << 20
    crust: bool = True
    rest_s: float = 1.5


_PLACE = f"{__name__}:Bread"


@click.command(cls=ObjectCommand)
@click.argument("name")
@object_options(_PLACE, "bread", leave=("rest_s",))
@click.option("--slices", type=int, default=1)
def _bake(*, name: str, bread: Bread, slices: int) -> None:
    """Bake it."""
    click.echo(f"{name} {slices} {bread}")


@click.command(cls=ObjectCommand)
@setting_options(_PLACE, leave=())
def _set(**given: object) -> None:
    """Say what is given."""
    click.echo(str({name: value for name, value in given.items() if value is not None}))


def test_a_command_gets_the_object() -> None:
    """With the values given, and the object's own defaults for the others."""
    given = ["loaf", "--flour", "rye", "--size-bytes", "3MiB", "--no-crust", "--slices", "7"]

    assert f"loaf 1 {Bread()}\n" == CliRunner().invoke(_bake, ["loaf"]).output
    wanted = Bread("rye", 3 << 20, crust=False)
    assert f"loaf 7 {wanted}\n" == CliRunner().invoke(_bake, given).output


def test_the_help_is_what_the_docstring_says() -> None:
    """With the names of options, without what None means, and with the default."""
    text = " ".join(CliRunner().invoke(_bake, ["--help"]).output.split())

    assert "--flour [rye|spelt] The flour, such as rye. Rye rises. --size-bytes" in text
    assert "How large it is, of --flour. [default: 2MiB]" in text
    assert "--crust / --no-crust Whether it has a crust. [default: crust]" in text
    assert "--rest-s" not in text


def test_a_setting_that_is_not_given_is_none() -> None:
    """So that a file can say it; the help shows the default."""
    assert "{}\n" == CliRunner().invoke(_set, []).output
    assert "{'rest_s': 2.0}\n" == CliRunner().invoke(_set, ["--rest-s", "2"]).output
    assert "[default: 1.5]" in CliRunner().invoke(_set, ["--help"]).output


@pytest.mark.parametrize("given", [["--flour", "wheat"], ["--size-bytes", "big"]])
def test_a_wrong_value_is_a_wrong_command_line(given: list[str]) -> None:
    """As with click's own options."""
    assert 2 == CliRunner().invoke(_bake, ["loaf", *given]).exit_code


@pytest.mark.parametrize("module", [read, order, loadtest])
def test_an_order_has_its_options_in_every_command(module: object) -> None:
    """But its unit, which is the global batch, and the ids, for which commands have a name."""
    command = module.command  # type: ignore[attr-defined] # each module has one
    names = {each.name for each in command.params}
    wanted = {field.name for field in fields(Order)} - {"unit", "with_ids"}

    assert wanted - names <= {"buckets"}
