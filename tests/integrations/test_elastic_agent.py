"""Workers of torch's elastic agent that die, join and leave train on each step's samples once.

How it could give a wrong sample: a world size of before the restart; a batch that was begun and
not saved; a state of another number of ranks.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.client import RemoteDataset
from integrations import elastic_job
from integrations.line import GLOBAL_BATCH

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

_TOTAL, _EVENTS, _LIMIT_S = 14, 3, 200.0
_QUICK = "join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"


def _agent(address: str, folder: Path, port: int, *, is_host: bool) -> subprocess.Popen[bytes]:
    options = ["--nnodes=1:4", "--nproc-per-node=1", "--max-restarts=50", "--monitor-interval=0.1"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=job"]
    conf = [f"--rdzv-conf={_QUICK},is_host={int(is_host)}", "--local-addr=localhost"]
    told = [elastic_job.__file__, address, str(folder), str(_TOTAL)]
    with (folder / "agents.err").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, *meeting, *conf, *told],
            stdout=errors,
            stderr=errors,
            start_new_session=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "OMP_NUM_THREADS": "1",
                # Torch 2.13 says only in its first round where the workers meet, without this.
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
        )


def _kill(agent: subprocess.Popen[bytes]) -> None:
    """Kill an agent, and its workers with it, as if their host were lost."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for child in (agent.pid, *map(int, children)):
        os.kill(child, signal.SIGKILL)
    agent.wait()


def _write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


class Job:
    """A job whose host's agent stays, while others come and go."""

    def __init__(self, address: str, folder: Path) -> None:
        with socket.create_server(("localhost", 0)) as found:
            port = found.getsockname()[1]
        self._start = partial(_agent, address, folder, port)
        self._folder, self._deadline = folder, time.monotonic() + _LIMIT_S
        self.others: list[subprocess.Popen[bytes]] = []
        self.train(0)
        self.host = self._start(is_host=True)

    def train(self, until: int) -> None:
        """Let it train some steps."""
        _write(self._folder / "until", str(until))

    def change(self, kind: str, random_: random.Random, step: int) -> None:
        """Let an agent join or leave, or a worker die in the next step, and wait for the others."""
        before = self._starts()
        if kind == "join" and len(self.others) < 3:
            self.others.append(self._start(is_host=False))
        elif kind == "leave" and self.others:
            _kill(self.others.pop(random_.randrange(len(self.others))))
            # Workers that wait for nobody do not notice.
            self.train(step + 1)
        else:
            _write(self._folder / "kill", f"{step} 0")
            self.train(step + 1)
        self.wait(lambda: self._starts() > before)

    def wait(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so.

        Raises:
            AssertionError: It takes too long.
        """
        while not is_so():
            assert time.monotonic() < self._deadline, self.errors
            time.sleep(0.05)

    def close(self) -> None:
        """End what still runs."""
        for agent in (self.host, *self.others):
            if agent.poll() is None:
                _kill(agent)

    def has_saved(self, steps: int) -> bool:
        """Return whether at least this number of steps is saved."""
        saved = self._folder / "state.pt"
        return saved.exists() and len(torch.load(saved)["trained"]) >= steps

    @property
    def errors(self) -> str:
        """What the agents say."""
        return (self._folder / "agents.err").read_text()[-4000:]

    def _starts(self) -> int:
        starts = self._folder / "starts"
        return len(starts.read_text().splitlines()) if starts.exists() else 0


def _live(random_: random.Random, address: str, folder: Path) -> None:
    """Run a job in which agents join and are killed, as are workers."""
    with closing(Job(address, folder)) as job:
        kinds = ["join", *random_.choices(["join", "leave", "die"], k=_EVENTS - 1)]
        for kind, step in zip(
            kinds, sorted(random_.sample(range(1, _TOTAL - 2), _EVENTS)), strict=True
        ):
            job.train(step)
            job.wait(partial(job.has_saved, step))
            job.change(kind, random_, step)
        job.train(_TOTAL)
        job.wait(lambda: job.host.poll() is not None)
        assert not job.host.returncode, job.errors


@pytest.mark.parametrize("seed", range(20))
def test_saved_steps_have_their_samples_once(seed: int, address: str, tmp_path: Path) -> None:
    """The same samples as in a run that nothing happens to, in the same order."""
    _live(random.Random(seed), address, tmp_path)
    with RemoteDataset(
        address, "train", seed=elastic_job.SEED, batch_size=GLOBAL_BATCH, rank=0, world_size=1
    ) as dataset:
        batches: Iterator[Any] = chain.from_iterable(repeat(dataset))
        wanted = [batch["id"].tolist() for batch in islice(batches, _TOTAL)]
    state = torch.load(tmp_path / "state.pt")

    assert wanted == state["trained"]
    assert set(state["worlds"]) != {1}, state["worlds"]
