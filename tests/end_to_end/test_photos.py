"""The example of photographs, whole: cut, converted, trained on, killed and resumed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

_EXAMPLE = Path(__file__).parents[2] / "examples" / "photos" / "run.py"

pytestmark = pytest.mark.long


def _photographs(folder: Path) -> None:
    """Make three pictures that can be told apart: grain of three sizes and colours."""
    folder.mkdir()
    for number in range(3):
        grain = np.random.default_rng(number).integers(0, 256, (900 >> number, 1400 >> number, 3))
        grain[:, :, number] //= 2
        image = Image.fromarray(grain.astype(np.uint8)).resize((1400, 900))
        image.save(folder / f"picture{number}.jpg", quality=90)


def test_photos(tmp_path: Path) -> None:
    """A run that was killed saw the pixels of the undisturbed one, and both learnt from them."""
    _photographs(tmp_path / "pictures")
    given = [tmp_path / "pictures", tmp_path / "out", "--pieces", 60, "--epochs", 20]
    ended = subprocess.run(
        [sys.executable, _EXAMPLE, *map(str, given)],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the same pixels at all" in ended.stdout
    with Image.open(tmp_path / "out" / "grid.png") as grid:
        assert grid.size == (896, 896)
