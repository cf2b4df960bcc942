"""The example of a GPT, whole: packed, trained on, killed and resumed on more ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLE = Path(__file__).parents[2] / "examples" / "gpt" / "run.py"


def _run(out: Path, *options: object, timeout_s: float) -> str:
    ended = subprocess.run(
        [sys.executable, _EXAMPLE, out, *map(str, options)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


_SMALL = ("--width", 32, "--layers", 1, "--length", 64, "--most-documents", 120)


@pytest.mark.long
def test_a_small_gpt(tmp_path: Path) -> None:
    """A run that is killed and goes on with three ranks has the rows and losses of another."""
    said = _run(tmp_path / "out", *_SMALL, "--kill-at", 6, "--checkpoint-every", 4, timeout_s=240)

    assert "killed, 2 ranks: killed" in said
    assert "the same rows and losses at all" in said
    assert "0 steps were lost" not in said


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_gpt_of_some_million_parameters(tmp_path: Path) -> None:
    """The same, as the example stands."""
    said = _run(tmp_path / "out", timeout_s=1700)

    assert "the same rows and losses at all" in said
