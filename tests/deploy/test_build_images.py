"""deploy/build-images.sh: what it would run and refuses; test_compose_runs.py runs it."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_VERSION = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]


def _script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [_ROOT / "deploy" / "build-images.sh", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _builds(*arguments: str) -> list[list[str]]:
    """The words of each `docker build` that would be run."""
    done = _script("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    return [words for words in commands if words[:2] == ["docker", "build"]]


def test_both_images_are_labelled() -> None:
    """Version, revision and time are those of this tree."""
    server, converter = _builds()

    assert f"headrace-server:{_VERSION}" in server
    assert f"headrace-converter:{_VERSION}" in converter
    for words in (server, converter):
        labels = dict(
            word.split("=", 1) for word in words if word.startswith("org.opencontainers.")
        )
        assert labels["org.opencontainers.image.version"] == _VERSION
        assert re.fullmatch(r"[0-9a-f]{40}(-dirty)?", labels["org.opencontainers.image.revision"])
        assert "T" in labels["org.opencontainers.image.created"]
        assert "org.opencontainers.image.source" not in labels


def test_what_a_ci_asks_for_is_passed_on() -> None:
    """The name in a registry, a tag, the source, and options of `docker build`."""
    asked = ("--prefix", "r.example/x-", "--tag", "7", "--source", "https://s.example", "server")
    (words,) = _builds(*asked, "--", "--build-arg", "BASE_IMAGE=my base")

    assert "r.example/x-server:7" in words
    assert "org.opencontainers.image.source=https://s.example" in words
    assert words[-3:] == ["--build-arg", "BASE_IMAGE=my base", "."]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("sever",), "no stage sever"),
        (("--tga", "1"), "no option --tga"),
        (("--build-arg", "A=b"), "after --"),
        (("--tag",), "--tag wants a value"),
    ],
)
def test_what_it_does_not_know_is_refused(arguments: tuple[str, ...], named: str) -> None:
    """Before anything is built, in one line that says where to look."""
    done = _script("--dry-run", *arguments)

    assert (2, "") == (done.returncode, done.stdout)
    assert named in done.stderr
    assert "--help" in done.stderr
