"""Each recipe, stopped and started again, sees what an undisturbed run sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from support.command import Serving, serving
from support.datasets import write_dataset

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
STOP, STEPS = 3, 12
"""An epoch has ten steps."""
VALIDATED, RIGHT = 301, 253
"""Samples to validate on, the last batch of which is not full, and those near the line."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """320 samples of a line, and others to validate on."""
    folder = tmp_path_factory.mktemp("recipes")
    write_dataset(str(folder / "line"), _line(320, far=0), shard_samples=[160, 160])
    validation = _line(VALIDATED, far=VALIDATED - RIGHT)
    write_dataset(str(folder / "val"), validation, shard_samples=[VALIDATED])
    with serving({name: str(folder / name) for name in ("line", "val")}) as running:
        yield running


def _line(count: int, *, far: int) -> pa.Table:
    x = np.random.default_rng(count).random((count, 8), dtype=np.float32)
    y = x @ np.arange(8, dtype=np.float32)
    y[:far] += 1000
    columns = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 8)
    return pa.table({"x": columns, "y": pa.array(y)})


def _run(
    command: list[str], recipe: str, server: Serving, checkpoint: Path, *more: str, steps: int
) -> str:
    whole = [*command, str(RECIPES / recipe), server.address, "line", str(checkpoint)]
    whole += ["--steps", str(steps), *more]
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
    found = [line[line.index("{") :] for line in output.splitlines() if '{"step"' in line]
    # Another process may write before or behind a report in its line.
    return [json.JSONDecoder().raw_decode(line)[0] for line in found]


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


@pytest.mark.parametrize("recipe", ["ddp.py", "fsdp.py", "workers.py"])
def test_recipes_run_as_they_are_printed(recipe: str, server: Serving, tmp_path: Path) -> None:
    """The command at the head of each starts as many processes as it says, and reaches its end."""
    text = (RECIPES / recipe).read_text().replace("\\\n", " ")
    (command,) = [line for line in text.splitlines() if f"examples/recipes/{recipe}" in line]
    command = command.replace("localhost:50051", server.address).replace("100", "12")
    command = command.replace("examples/recipes", str(RECIPES))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{command} 2>&1"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": path},
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    assert list(range(12)) == [line["step"] for line in _lines(done.stdout)]
    if "--validation" in command:
        assert '{"validated": 320,' in done.stdout


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("recipe", ["ddp.py"])
def test_validation_counts_each_sample_once(
    recipe: str, processes: int, server: Serving, tmp_path: Path
) -> None:
    """On any number of processes, though the last batch is not full: 301 samples, 253 right."""
    command = _torchrun(processes)
    options = ("--validation", "val")

    output = _run(command, recipe, server, tmp_path / "c", *options, steps=400)

    wanted = {"validated": VALIDATED, "right": round(RIGHT / VALIDATED, 4)}
    assert output.count('{"validated"') == 1
    assert json.dumps(wanted) in output
