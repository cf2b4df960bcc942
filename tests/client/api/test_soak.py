"""A client that reads for long needs no more memory."""

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak_client.py"


@pytest.mark.long
def test_memory_is_flat() -> None:
    """Over some hundred epochs and some ten dropped streams the second half keeps no more."""
    done = subprocess.run(
        [sys.executable, SOAK, "--seconds", "60"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
