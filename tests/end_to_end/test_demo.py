"""`make demo`, as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "examples" / "demo" / "run.py"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_keeps_its_promises(tmp_path: Path) -> None:
    """All models learn, through both faults, from exactly the samples of an undisturbed run."""
    ended = subprocess.run(
        [sys.executable, RUN, "--output", tmp_path],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [training["task"] for training in summary["trainings"]] == [
        "digits",
        "flights",
        "photos",
    ]
    for training in summary["trainings"]:
        assert training["seen_digest"] == training["wanted_digest"]
        assert training["samples_lost"] == training["samples_repeated"] == 0
        assert training["reconnect_count"] > 0
        assert training["steps_redone"] > 0
        assert training["test_accuracy"] >= training["accuracy_floor"] > training["majority"]
    page = (tmp_path / "report.html").read_text()
    for name in ("loss.png", "photos.png"):
        picture = (tmp_path / name).read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert b64encode(picture).decode() in page
    assert "The demo passed" in page
    assert {"store", "spark", "tmp"}.isdisjoint(
        path.name for path in (tmp_path / ".build").iterdir()
    )
