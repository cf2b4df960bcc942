"""Each recipe, stopped and started again, sees what an undisturbed run sees.

Frameworks that are no development dependencies are installed into an environment of their own,
on top of this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support.command import Serving, serving
from support.datasets import write_dataset
from support.environments import put_below

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
FRAMEWORKS = ("accelerate", "lightning", "ray[train]", "transformers[torch]")
STOP, STEPS = 3, 12
"""An epoch has ten steps."""
RAYS_OWN_LIMIT = "The current node timed out during startup"
"""Ray gives its own processes 30 s to start, which a busy machine may not have; then nothing of the
recipe has run yet."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """320 samples of a line."""
    url = str(tmp_path_factory.mktemp("recipes") / "line")
    x = np.random.default_rng(1).random((320, 8), dtype=np.float32)
    columns = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 8),
        "y": pa.array(x @ np.arange(8, dtype=np.float32)),
    }
    write_dataset(url, pa.table(columns), shard_samples=[160, 160])
    with serving({"line": url}) as running:
        yield running


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the frameworks, on top of this one."""
    folder = tmp_path_factory.mktemp("frameworks")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    put_below(folder)
    done = subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *FRAMEWORKS],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(python)


def _run(command: list[str], recipe: str, server: Serving, checkpoint: Path, *, steps: int) -> str:
    whole = [*command, str(RECIPES / recipe), server.address, "line", str(checkpoint)]
    whole += ["--steps", str(steps)]
    done = _finished(whole, checkpoint.parent)
    for _ in range(4):
        if RAYS_OWN_LIMIT not in done.stderr:
            break
        done = _finished(whole, checkpoint.parent)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr


def _finished(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=folder,
    )


def _lines(output: str) -> list[dict[str, float]]:
    """The reports, once each: Ray repeats what its workers print, behind their names."""
    found = [line[line.index("{") :] for line in output.splitlines() if '{"step"' in line]
    return [json.loads(line) for line in dict.fromkeys(found)]


def _assert_resumes(
    recipe: str, server: Serving, folder: Path, *, first: list[str], then: list[str]
) -> None:
    seen = _lines(_run(first, recipe, server, folder / "stopped", steps=STOP))
    seen += _lines(_run(then, recipe, server, folder / "stopped", steps=STEPS))
    undisturbed = _lines(_run(first, recipe, server, folder / "undisturbed", steps=STEPS))

    assert list(range(STEPS)) == [line["step"] for line in seen]
    assert [line["position"] for line in undisturbed] == [line["position"] for line in seen]
    assert [line["loss"] for line in undisturbed] == pytest.approx(
        [line["loss"] for line in seen], rel=1e-4
    )


def _torchrun(processes: int) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--nproc-per-node", str(processes)),
    ]


@pytest.mark.parametrize("recipe", ["ddp.py", "fsdp.py"])
def test_torchrun_goes_on_with_another_number_of_processes(
    recipe: str, server: Serving, tmp_path: Path
) -> None:
    """Two processes, then one, train as two do: the same global batches, the same losses."""
    _assert_resumes(recipe, server, tmp_path, first=_torchrun(2), then=_torchrun(1))


@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_workers_go_on(
    method: str, server: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the worker processes are started."""
    monkeypatch.setenv("START_METHOD", method)
    python = [sys.executable]

    _assert_resumes("workers.py", server, tmp_path, first=python, then=python)


@pytest.mark.parametrize(
    "recipe",
    ["with_lightning.py", "with_accelerate.py", "with_hf_trainer.py", "with_ray_train.py"],
)
def test_frameworks_go_on(recipe: str, server: Serving, frameworks: str, tmp_path: Path) -> None:
    """The dataset's state travels in the framework's own checkpoint, or beside it."""
    _assert_resumes(recipe, server, tmp_path, first=[frameworks], then=[frameworks])
