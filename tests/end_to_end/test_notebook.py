"""The notebook of the examples, run from its first cell to its last."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark_to_pytorch.ipynb"

DEADLINE_S = 600.0  # a minute on two quiet cores; the rest is for others on a busy machine

# In a process of its own: what Jupyter's client warns of is not ours to fail for.
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], 4)
NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def _outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def test_it_is_kept_without_outputs() -> None:
    """What a run printed would be old before long, and large."""
    notebook = nbformat.read(NOTEBOOK, 4)  # type: ignore[no-untyped-call] # it has no types

    assert [] == _outputs(notebook)
    assert [None] == list({cell.get("execution_count") for cell in notebook.cells})


@pytest.mark.long
@pytest.mark.timeout(660)
def test_it_learns_alone_and_on_two_processes(tmp_path: Path) -> None:
    """Every cell runs, and both trainings tell discs, squares and triangles apart."""
    executed = tmp_path / "executed.ipynb"
    log = tmp_path / "log"
    # To a file: a JVM or a private server that outlives the kernel would hold a pipe open.
    with log.open("w") as out:
        done = subprocess.run(
            [sys.executable, "-c", RUN, str(NOTEBOOK), str(executed)],
            stdout=out,
            stderr=out,
            timeout=DEADLINE_S,
            check=False,
        )
    assert 0 == done.returncode, log.read_text()[-4000:]
    notebook = nbformat.read(executed, 4)  # type: ignore[no-untyped-call] # it has no types
    text = "".join(output.get("text", "") for output in _outputs(notebook))
    right = re.search(r"after one process (\d+)%, after two (\d+)%", text)

    assert right is not None, text
    assert min(int(right[1]), int(right[2])) >= 80
