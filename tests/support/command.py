"""The `headrace` command as a real process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from headrace.bench.children import Serving, serving

__all__ = ["HEADRACE", "Serving", "run", "serving"]

HEADRACE = Path(sys.executable).parent / "headrace"


def run(
    *arguments: str, timeout_s: float = 280, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [HEADRACE, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=environment,
    )
