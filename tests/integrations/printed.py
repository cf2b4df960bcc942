"""The programs and the command that a page of docs/integrations prints."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from integrations.line import HELD_OUT, SAMPLES, line

PAGES = Path(__file__).parents[2] / "docs" / "integrations"


@dataclass(frozen=True, slots=True)
class Page:
    """What a page prints.

    Attributes:
        native: The program with the framework's own loader.
        ours: The same with headrace.
        command: Runs the latter.
        words: How many the page has.
    """

    native: str
    ours: str
    command: str
    words: int

    @classmethod
    def read(cls, name: str) -> Self:
        """Read ``docs/integrations/<name>.md``."""
        text = (PAGES / f"{name}.md").read_text()
        native, ours = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        (command,) = re.findall(r"^    (\S.*train\.py.*)$", text, re.MULTILINE)
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        return cls(native, ours, command, len(prose.split()))

    @property
    def changed(self) -> list[str]:
        """The lines of ours that the native program has not."""
        found = difflib.ndiff(self.native.splitlines(), self.ours.splitlines())
        return [line[2:] for line in found if line.startswith("+ ")]

    def run(self, folder: Path, address: str, python: str = sys.executable) -> str:
        """Run ours as printed, against a server, and return what it prints."""
        (folder / "train.py").write_text(self.ours.replace("localhost:50051", address))
        return run(self.command, folder, python)

    def run_native(self, folder: Path, python: str = sys.executable) -> str:
        """Run the native program on the same samples, in the same way."""
        for name, count in (("train", SAMPLES), ("val", HELD_OUT)):
            table = line(count)
            x = torch.tensor(table["x"].to_pylist())
            y = torch.tensor(table["y"].to_pylist())
            rows = [{"x": row, "y": value} for row, value in zip(x, y, strict=True)]
            torch.save(rows, folder / f"{name}.pt")
        (folder / "native.py").write_text(self.native)
        return run(self.command.replace("train.py", "native.py"), folder, python)


_RAYS_OWN_LIMIT = "The current node timed out during startup"
"""Ray gives its own processes 30 s to start, which a busy machine may not have; then nothing of the
program has run yet."""


def run(command: str, folder: Path, python: str) -> str:
    """Run a command with one interpreter's programs first, and return what it prints."""
    done = _finished(command, folder, python)
    for _ in range(4):
        if _RAYS_OWN_LIMIT not in done.stdout:
            break
        done = _finished(command, folder, python)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def _finished(command: str, folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(python).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["/bin/sh", "-c", f"{command} 2>&1"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "ACCELERATE_USE_CPU": "1"},
        cwd=folder,
    )
