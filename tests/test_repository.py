"""What people look for in a repository says what is so."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _read(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_the_public_workflow_runs_what_must_pass() -> None:
    """The same script as anywhere, on the lowest and the highest Python; wheels; the site."""
    jobs = _read(".github/workflows/ci.yml")["jobs"]
    commands = [step.get("run", "") for job in jobs.values() for step in job["steps"]]

    assert ".ci/run" in commands
    assert {"make dist docs"} <= set(commands)
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    stated = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if "Python :: 3." in each]
    assert [min(stated), max(stated)] == versions


def test_hooks_before_a_commit_run_each_tool_of_make_check() -> None:
    """Also with the same words, so that both agree."""
    recipe = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    tools = set(re.findall(r"\$\(BIN\)/([\w-]+ ?(?:check|format|lint)?)", recipe))
    (local,) = _read(".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].removeprefix(".venv/bin/") for hook in local["hooks"]]

    missing = {tool for tool in tools if not any(each.startswith(tool) for each in entries)}
    assert not missing


def test_the_citation_names_this_version() -> None:
    """And this licence."""
    citation = _read("CITATION.cff")

    assert PROJECT["version"] == citation["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Source"]


_FORMS = [str(path.relative_to(ROOT)) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")]


@pytest.mark.parametrize("path", [".github/dependabot.yml", *sorted(_FORMS)])
def test_forms_and_configurations_can_be_read(path: str) -> None:
    """Folders that they name exist."""
    found = _read(path)

    assert found
    for update in found.get("updates", []):
        assert (ROOT / update["directory"].strip("/")).is_dir()


def test_python_runs_the_command_line_as_a_module() -> None:
    """Where the folder of scripts is not on PATH."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert f"headrace, version {PROJECT['version']}\n" == done.stdout
