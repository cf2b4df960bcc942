"""Tests of the options of `headrace serve`."""

from __future__ import annotations

from click.testing import CliRunner

from headrace.cli._types import SIZE
from headrace.cli.serve import command
from headrace.server import ServerConfig


def test_the_defaults_are_the_servers() -> None:
    """What the command takes when nothing is said is what `ServerConfig` says."""
    config = ServerConfig(datasets={"d": "/d"})
    defaults = {option.name: option.default for option in command.params}

    assert config.cache_bytes == SIZE.convert(defaults["cache_bytes"], None, None)
    assert config.max_streams == defaults["max_streams"]
    assert config.drain_s == defaults["drain_s"]


def test_help_says_where_the_cache_size_comes_from() -> None:
    """The help relates the size of the cache to the window."""
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())

    assert "twice the default window of 1 GiB" in text
    assert "2GiB" in text
