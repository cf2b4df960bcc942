"""The loop of docs/validation.md gives every rank the gradient of the whole global batch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from support.datasets import write_dataset
from support.gradient_job import GLOBAL_BATCH, WIDTH, gradient_of, make_model
from support.running import server_of

JOB = Path(__file__).parents[1] / "support" / "gradient_job.py"
SAMPLES = 2 * GLOBAL_BATCH - 1
Found = tuple[list[list[float]], list[int]]
"""The gradient of each step of a rank, and its samples."""


def _samples() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    random = np.random.default_rng(1)
    return random.normal(size=(SAMPLES, WIDTH)), random.normal(size=SAMPLES)


def _run(folder: Path, cases: list[dict[str, Any]]) -> list[list[Found]]:
    """Run cases on as many processes as ranks; return what each rank of each case found."""
    x, y = _samples()
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH), "y": y})
    write_dataset(str(folder / "d"), table, shard_samples=[SAMPLES])
    with server_of({"d": str(folder / "d")}) as server:
        job = [sys.executable, str(JOB), str(folder), server.address, json.dumps(cases)]
        subprocess.run(job, check=True, timeout=500)
    ranks = [
        json.loads((folder / f"{rank}.json").read_text())
        for rank in range(max(case["world_size"] for case in cases))
    ]
    return [
        [found[str(number)] for found in ranks if str(number) in found]
        for number in range(len(cases))
    ]


def _alone(order: list[int], position: int, end: str) -> list[list[float]]:
    """The gradient of each global batch, of one process and the samples as they were written."""
    x, y = _samples()
    gradients = []
    stop = len(order) - (len(order) - position) % GLOBAL_BATCH if end == "drop_last" else len(order)
    for start in range(position, stop, GLOBAL_BATCH):
        ids = order[start : start + GLOBAL_BATCH]
        model = make_model()
        loss = nn.functional.mse_loss(model(torch.from_numpy(x[ids])), torch.from_numpy(y[ids]))
        torch.autograd.backward(loss)
        gradients.append(gradient_of(model))
    return gradients


def _check(folder: Path, cases: list[dict[str, Any]]) -> int:
    """Compare; return how often a rank had no sample."""
    seen = _run(folder, cases)
    empty = 0
    # shuffle=False: the order of samples is that of storage.
    order = list(range(SAMPLES))
    for case, ranks in zip(cases, seen, strict=True):
        expected = _alone(order, case["position"], case["end"])
        for gradients, counts in ranks:
            assert len(expected) == len(gradients)
            for wanted, found in zip(expected, gradients, strict=True):
                assert np.isfinite(found).all()
                np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)
            empty += counts.count(0)
    return empty


def _case(world_size: int, position: int, **options: Any) -> dict[str, Any]:
    given = {"end": "uneven", "shuffle": False, **options}
    return {"world_size": world_size, "position": position, **given}


def test_the_last_batch_counts_as_in_one_process(tmp_path: Path) -> None:
    """On 2 and 3 ranks, whatever is left: finite, and within 1e-6 of the global batch's."""
    cases = [_case(3, 12), _case(3, 14), _case(3, 5), _case(3, 13), _case(2, 14)]
    cases += [
        _case(2, 14, mesh={"dp": 1, "tp": 2}),
        _case(3, 13, end="pad"),
        _case(3, 3, end="drop_last"),
    ]

    assert _check(tmp_path, cases) > 0


@pytest.mark.long
@pytest.mark.parametrize("end", ["uneven", "pad", "drop_last"])
def test_every_world_size_and_every_remainder(tmp_path: Path, end: str) -> None:
    """All of 1 to 8 ranks and 0 to 7 samples behind a whole batch, also where ranks repeat."""
    cases = [
        _case(world_size, position, end=end)
        for world_size in range(1, 9)
        for position in range(GLOBAL_BATCH)
    ]
    meshes = [{"dp": 4, "tp": 2}, {"pp": 2, "dp": 2, "tp": 2}]
    cases += [_case(8, position, end=end, mesh=mesh) for mesh in meshes for position in (1, 4)]
    empty = _check(tmp_path, cases)

    assert (end == "uneven") == (empty > 0)
