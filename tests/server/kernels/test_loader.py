"""Claims about where compiled loops come from, and about installations that have none."""

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
from headrace.server.kernels.loader import LOOPS

_ROOT = Path(__file__).parents[3]
_SERVER = Path(next(iter(headrace.server.__path__)))
_TRIED = (
    "from headrace.errors import ConfigurationError\n"
    "try: import headrace.server.kernels.loader\n"
    "except ConfigurationError as error: print(error.message)\n"
    "else: print('none')"
)


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
    assert sources_digest() == LOOPS.SOURCES


def _why_not(environment: dict[str, str]) -> str:
    """Return why a server of another installation does not start."""
    return _python(environment, "-c", _TRIED)


def test_an_installation_without_loops_names_what_to_do(tmp_path: Path) -> None:
    """No server starts, and the error is one sentence."""
    found = _why_not(_copy(tmp_path, "*.so"))

    assert found.startswith("the server's compiled loops are missing")
    assert "pip install ziglang" in found


def test_loops_of_other_sources_are_not_used(tmp_path: Path) -> None:
    """Nor does one of a clone whose sources have changed since they were compiled."""
    environment = _copy(tmp_path)
    with (tmp_path / "headrace/server/kernels/src/order.h").open("a") as file:
        file.write("\n")

    assert "were compiled from other sources" in _why_not(environment)


def test_loops_that_cannot_be_loaded_are_not_used(tmp_path: Path) -> None:
    """Those of another processor, say."""
    environment = _copy(tmp_path, "*.so")
    (tmp_path / "headrace/server/kernels" / EXTENSION).write_bytes(b"\x7fELF of elsewhere")

    assert "cannot be loaded" in _why_not(environment)


def test_loops_are_compiled_by_hand(tmp_path: Path) -> None:
    """A compiler that came later is made use of by one command."""
    environment = _copy(tmp_path, "*.so")

    made = _python(environment, "-m", "headrace.server.kernels")
    found = _why_not(environment)

    assert f"{tmp_path / 'headrace/server/kernels' / EXTENSION}\n" == made
    assert "none\n" == found


def test_loops_need_no_headers_of_python() -> None:
    """Nor those of NumPy: what they use of Python is declared beside them."""
    sources = (_SERVER / "kernels" / "src").iterdir()

    assert [] == [path.name for path in sources if "<Python.h>" in path.read_text()]


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_the_reason_is_stated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """Whether there is none or it fails; nothing is left behind."""
    monkeypatch.setenv("CC", compiler)

    with pytest.raises(NotCompiledError, match=compiler):
        compile_loops(tmp_path)

    assert [] == list(tmp_path.iterdir())
