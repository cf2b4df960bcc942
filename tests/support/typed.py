"""Programs of users before mypy, with rules that are strict."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from support.pages import ROOT


def strict_mypy(files: Iterable[Path], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Check programs strictly, as far as the frameworks that they import have types themselves."""
    rules = ["--strict", "--allow-untyped-calls", "--allow-subclassing-any"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *rules, *sorted(files)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        cwd=ROOT,
    )
