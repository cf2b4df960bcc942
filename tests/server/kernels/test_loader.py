"""Claims about where compiled loops come from, and about servers that have none."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

import headrace.server
from headrace.server.kernels.compile import (
    EXTENSION,
    NotCompiledError,
    compile_loops,
    sources_digest,
)
from headrace.server.kernels.loader import load
from support.loops import compiled_loops

_ROOT = Path(__file__).parents[3]
_SERVER = Path(next(iter(headrace.server.__path__)))
_LONG = (pytest.mark.long, pytest.mark.timeout(1200))
_LOADED = "from headrace.server.kernels.loader import *; print(*load())"


def _copy(folder: Path, *left_out: str) -> dict[str, str]:
    """Copy the server without some files; return the environment in which the copy is used."""
    shutil.copytree(
        _SERVER,
        folder / "headrace" / "server",
        ignore=shutil.ignore_patterns("__pycache__", *left_out),
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def _python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout


def test_no_two_sources_define_the_same_macro() -> None:
    """They are compiled as one file, in which the last definition would count for all below it."""
    sources = (_SERVER / "kernels" / "src").iterdir()
    names = [set(re.findall(r"^#define (\w+)", path.read_text(), re.MULTILINE)) for path in sources]

    assert [] == [name for name, count in Counter(chain(*names)).items() if count > 1]


def test_loops_are_those_of_their_sources() -> None:
    """What is loaded was compiled from the files that lie beside it."""
    assert sources_digest() == compiled_loops().SOURCES


def test_an_installation_without_loops_says_so(tmp_path: Path) -> None:
    """It works, and says what is missing."""
    found = _python(_copy(tmp_path, "*.so"), "-c", _LOADED)

    assert "None no compiler was found when headrace was installed\n" == found


def test_loops_of_other_sources_are_not_used(tmp_path: Path) -> None:
    """A clone whose sources have changed since they were compiled does not use what was."""
    compiled_loops()
    environment = _copy(tmp_path)
    with (tmp_path / "headrace/server/kernels/src/order.h").open("a") as file:
        file.write("\n")

    found = _python(environment, "-c", _LOADED)

    assert "None the compiled loops do not match their sources\n" == found


def test_loops_that_cannot_be_loaded_are_not_used(tmp_path: Path) -> None:
    """Those of another processor, say."""
    environment = _copy(tmp_path, "*.so")
    (tmp_path / "headrace/server/kernels" / EXTENSION).write_bytes(b"\x7fELF of elsewhere")

    found = _python(environment, "-c", _LOADED)

    assert found.startswith("None the compiled loops cannot be loaded (")


def test_loops_are_compiled_by_hand(tmp_path: Path) -> None:
    """A compiler that came later is made use of by one command."""
    compiled_loops()
    environment = _copy(tmp_path, "*.so")

    made = _python(environment, "-m", "headrace.server.kernels")
    found = _python(environment, "-c", _LOADED)

    assert f"{tmp_path / 'headrace/server/kernels' / EXTENSION}\n" == made
    assert found.startswith("<module 'headrace.server.kernels._loops'")


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_the_reason_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """Whether there is none or it fails; nothing is left behind."""
    monkeypatch.setenv("CC", compiler)

    with pytest.raises(NotCompiledError, match=compiler):
        compile_loops(tmp_path)

    assert [] == list(tmp_path.iterdir())


def test_a_name_that_is_no_module_gives_no_loops() -> None:
    """As in an installation that has none."""
    assert None is load("headrace.server.kernels._no_such_loops")[0]


@pytest.mark.parametrize(
    "tests",
    [
        "tests/server/stream/test_python_calls.py",
        pytest.param("tests/server/stream tests/server/batch tests/server/plan", marks=_LONG),
    ],
)
def test_batches_need_no_loops(tmp_path: Path, tests: str) -> None:
    """Tests of the server pass where NumPy makes every batch."""
    environment = _copy(tmp_path, "*.so")
    options = ("-q", "-p", "no:cacheprovider", "-m", "not long")

    found = _python(environment, "-m", "pytest", *options, *tests.split())

    assert " passed" in found
