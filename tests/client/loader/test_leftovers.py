"""What a job leaves behind, however it ends: nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import loader_job
from support.datasets import small_table, write_dataset
from support.private import is_over, server_pids, wait_until

SHARED = Path("/dev/shm")  # noqa: S108 - where the system keeps it


@pytest.mark.parametrize("end", ["asked", "killed"])
def test_nothing_is_left_of_a_job_with_workers(end: str, tmp_path: Path, runtime: Path) -> None:
    """No process, no private server, no temporary file and no shared memory."""
    url, temporary = str(tmp_path / "d"), tmp_path / "t"
    write_dataset(url, small_table(400), shard_samples=(200, 200))
    temporary.mkdir()
    before = set(SHARED.iterdir())
    with subprocess.Popen(
        [sys.executable, loader_job.__file__, url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as job:
        assert job.stdin is not None
        assert job.stdout is not None
        pids = json.loads(job.stdout.readline())
        servers = server_pids(runtime)
        if end == "killed":
            job.send_signal(signal.SIGKILL)
        else:
            job.stdin.close()
        job.wait(60)

    assert 3 == len(pids)
    assert 1 == len(servers)
    assert wait_until(lambda: all(map(is_over, pids)))
    assert wait_until(lambda: not server_pids(runtime))
    left = [path.name for path in temporary.iterdir()]
    # Of a main process that was killed Python itself leaves the folder of its fork server.
    assert [] == [name for name in left if end == "asked" or not name.startswith("pymp-")]
    assert len(left) <= 1
    # Shared memory that others made meanwhile names none of the job's processes.
    named = re.compile(rf"(?<!\d)({'|'.join(map(str, [*pids, *servers]))})(?!\d)")
    new = set(SHARED.iterdir()) - before
    assert [] == [path for path in new if named.search(path.name)]
    assert [] == list(runtime.glob("headrace/*"))
