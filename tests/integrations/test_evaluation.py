"""Every sample of an evaluation is counted once, by each framework, on any number of ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations.evaluation_job import BATCH, JOBS
from integrations.line import HELD_OUT

pytestmark = pytest.mark.long


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("framework", JOBS)
def test_each_sample_is_counted_once(
    framework: str, ranks: int, address: str, tmp_path: Path
) -> None:
    """In each of two evaluations, though no number of ranks divides the samples into batches."""
    assert all(HELD_OUT % (BATCH * count) for count in range(1, 5))
    job = Path(__file__).with_name("evaluation_job.py")
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = subprocess.run(
        [sys.executable, *launch, job, framework, address, tmp_path],
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:]
    counted = json.loads((tmp_path / "counted.json").read_text())
    assert [list(range(HELD_OUT))] * 2 == [sorted(one) for one in counted]
