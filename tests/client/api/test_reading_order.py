"""The way of a batch through the client, as CONTRIBUTING.md gives it to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.reading_order import CLIENT

# Modules of an epoch of one batch.
_MOST = 23
_TRACE = "import json; from support.reading_order import CLIENT; print(json.dumps(CLIENT.trace()))"


def test_contributing_lists_the_modules_of_a_batch() -> None:
    """The list is what a real loop enters; two threads enter them, so the order may differ.

    In a process without training frameworks: beside one, a loop asks whether it is called by it.
    """
    done = subprocess.run(
        [sys.executable, "-c", _TRACE],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert sorted(CLIENT.listed()) == sorted(found), (
        "run PYTHONPATH=tests python -m support.reading_order"
    )
    assert len(found) <= _MOST
