"""MosaicML's own tests, of which only the import is changed; they are fetched, never committed.

Their archive has no helpers; those in `suite/` take their place.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import headrace.compat.streaming as ours

HERE = Path(__file__).parent
PACKAGE = "mosaicml-streaming==0.13.0"
FILES = (
    "streaming",
    "stream",
    "mixing",
    "reader",
    "writer",
    "local",
    "eviction",
    "laziness",
    "unsafe_types",
)
_RUN_S = 6000.0
_IMPORT = re.compile(r"^from streaming[\w.]* import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_FIXTURE_MARK = re.compile(r"@pytest\.mark\.usefixtures\([^)]*\)\n(?=@pytest\.fixture)")


def _changed(found: re.Match[str]) -> str:
    names = [name.strip() for name in found[1].strip("()").split(",") if name.strip()]
    absent = [name for name in names if name not in ours.__all__]
    kept = [name for name in names if name in ours.__all__]
    lines = [f"from headrace.compat.streaming import {', '.join(kept)}"] if kept else []
    lines += [f"from tests.common.absent import {', '.join(absent)}"] if absent else []
    return "\n".join(lines)


def prepare(folder: Path) -> None:
    """Fetch their tests into a folder, and change their imports.

    A marker on a fixture, which never had an effect and which pytest now refuses, is left out.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:"]
    command += ["--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True, timeout=600)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    (theirs,) = folder.glob("*/tests")
    common = folder / "tests" / "common"
    common.mkdir(parents=True)
    for path in (HERE / "suite").glob("*.py"):
        # It is no conftest.py here, whose hook would run each test of ours in a process of its own.
        is_hook = path.name == "each_alone.py"
        shutil.copy(path, common.parent / "conftest.py" if is_hook else common)
    for package in (common, common.parent):
        (package / "__init__.py").touch()
    for name in FILES:
        text = (theirs / f"test_{name}.py").read_text()
        text = _FIXTURE_MARK.sub("", _IMPORT.sub(_changed, text))
        (common.parent / f"test_{name}.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")


def run(folder: Path, *options: str) -> dict[str, bool]:
    """Run what `prepare` made; return whether all cases of each function pass."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "tests", "-q", "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *options]
    subprocess.run(command, cwd=folder, timeout=_RUN_S, check=False)
    passed: dict[str, bool] = {}
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own file
        name = f"{case.get('classname', '').removeprefix('tests.')}.{case.get('name', '')}"
        name = name.partition("[")[0]
        failed = case.find("failure") is not None or case.find("error") is not None
        passed[name] = passed.get(name, True) and not failed
    return passed


@pytest.mark.long
@pytest.mark.timeout(_RUN_S + 600)
def test_what_fails_of_their_tests_is_listed_with_its_reason(tmp_path: Path) -> None:
    """And nothing else fails: at least 60 functions pass, with all their cases."""
    listed: dict[str, str] = json.loads((HERE / "their_tests.json").read_text())
    prepare(tmp_path)

    passed = run(tmp_path)

    assert sorted(listed) == sorted(name for name, is_right in passed.items() if not is_right)
    assert 60 <= sum(passed.values())


def test_each_reason_is_given() -> None:
    """The list names functions of the files that are run, and says why for each."""
    listed: dict[str, str] = json.loads((HERE / "their_tests.json").read_text())

    assert {name.partition(".")[0] for name in listed} <= {f"test_{name}" for name in FILES}
    assert all(len(reason) > 20 for reason in listed.values())
