"""An environment in which mosaicml-streaming runs, made once and kept beside other builds.

It has its own because the package pins much and imports torchvision, of which the wheel that
pip chooses does not load beside the build of torch for machines without a GPU.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.environments import environment, stub_torchvision

_SCRIPTS = Path(__file__).parent
_PACKAGES = ("mosaicml-streaming==0.13.0", "torch==2.13.0")
_SCRIPT_S = 300.0


@dataclass(frozen=True, slots=True)
class Mosaic:
    """The real package, behind a process.

    Attributes:
        python: The interpreter that has it.
    """

    python: Path

    def write(self, folder: Path, *, compression: str, hashes: str, sample_count: int) -> None:
        """Write the corpus with Mosaic's writer."""
        self._run("mosaic_write.py", [str(folder), compression, hashes, str(sample_count)])

    def write_text(self, folder: Path, form: str, *, compression: str, sample_count: int) -> None:
        """Write lines of a format with Mosaic's writer, under two hashes."""
        options = [compression, "sha1,xxh64", str(sample_count)]
        self._run("mosaic_write_text.py", [str(folder), form, *options])

    def write_mixed(self, folder: Path, arrays: Path) -> None:
        """Write the arrays of an ``.npz`` file with Mosaic's writer, as column ``x``."""
        self._run("mosaic_write_mixed.py", [str(folder), str(arrays)])

    def read(self, folder: Path, *, validate_hash: str | None = None) -> list[Any]:
        """Return what Mosaic's reader gives, as `rendered` has it."""
        arguments = [str(folder)] if validate_hash is None else [str(folder), validate_hash]
        lines = self._run("mosaic_read.py", arguments).splitlines()
        return [json.loads(line) for line in lines]

    def _run(self, script: str, arguments: Sequence[str]) -> str:
        command = [str(self.python), str(_SCRIPTS / script), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SCRIPT_S, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def mosaic() -> Mosaic:
    """Make the environment where it is not there yet, which takes a minute or two."""
    folder = environment("mosaic", _PACKAGES, without=["torchvision"])
    stub_torchvision(folder)
    return Mosaic(folder / "bin" / "python")
