"""Replicas of torchft that die in and between steps train on each step's samples once.

How it could give a wrong sample: a division among others than those who take part; a step that was
begun and not committed, lost; a replica that heals, counted; steps of the manager that are not the
dataset's.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torchft", exc_type=ImportError)

from torchft.coordination import LighthouseServer

from headrace.client import RemoteDataset
from headrace.errors import BadArgumentError
from headrace.integrations.torchft import StepBatches
from integrations import torchft_job
from integrations.line import GLOBAL_BATCH

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

_REPLICAS, _LIMIT_S = 3, 200.0


@pytest.fixture
def lighthouse() -> Iterator[str]:
    """A lighthouse of torchft, which notices within a second that a replica is gone."""
    server = LighthouseServer(
        bind="[::]:0", min_replicas=2, join_timeout_ms=500, heartbeat_timeout_ms=1000
    )
    yield f"http://localhost:{server.address().rpartition(':')[2]}"
    server.shutdown()


class Replicas:
    """Replicas of which some die once and are started again."""

    def __init__(self, told: list[str], folder: Path, deaths: dict[int, tuple[str, str]]) -> None:
        self._told, self._folder = told, folder
        self._until(1 << 30)
        self._running = {
            replica: self._start(replica, *deaths.get(replica, ())) for replica in range(_REPLICAS)
        }
        self._left = len(deaths)
        self._deadline = time.monotonic() + _LIMIT_S

    def live(self) -> int:
        """Run until all that die have died and been back for some steps; return the steps."""
        while self._left:
            for replica, each in self._running.items():
                self._look(replica, each)
        total: int = max(line["step"] for line in lines_of(self._folder)) + 5
        self._until(total)
        while sum(each.poll() == 0 for each in self._running.values()) < _REPLICAS - 1:
            self._wait()
        return total

    def close(self) -> None:
        """End what still runs."""
        for each in self._running.values():
            each.kill()
            each.wait()

    def _look(self, replica: int, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self._wait()
            return
        assert process.poll() == 9, self._errors(replica)
        before = (self._folder / f"{replica}.jsonl").read_text()
        self._running[replica] = self._start(replica)
        while (self._folder / f"{replica}.jsonl").read_text() == before:
            assert self._running[replica].poll() is None, self._errors(replica)
            self._wait()
        self._left -= 1

    def _wait(self) -> None:
        assert time.monotonic() < self._deadline, "the replicas do not come to an end"
        time.sleep(0.05)

    def _errors(self, replica: int) -> str:
        return (self._folder / f"{replica}.err").read_text()[-4000:]

    def _until(self, step: int) -> None:
        (self._folder / "new").write_text(str(step))
        (self._folder / "new").replace(self._folder / "until")

    def _start(self, replica: int, *at: str) -> subprocess.Popen[bytes]:
        lighthouse, address, kind = self._told
        told = [lighthouse, address, str(self._folder), str(replica), kind, *at]
        with (self._folder / f"{replica}.err").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, torchft_job.__file__, *told],
                stdout=errors,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
            )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return what the replicas have logged; a last line may be half written."""
    texts = [file.read_text() for file in folder.glob("*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines(True) if "\n" in line]


def _trained(folder: Path, total: int) -> list[list[int]]:
    """Return the samples of each committed step, as its participants had them."""
    lines = [
        json.loads(line)
        for file in folder.glob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    tried: dict[tuple[int, int, int], list[int]] = {}
    for line in lines:
        if line.get("rank") is not None:
            key = line["step"], line["quorum"], line["rank"]
            assert tried.setdefault(key, line["ids"]) == line["ids"]
    committed = {
        (line["step"], line["quorum"], line["count"]) for line in lines if "committed" in line
    }
    assert sorted(step for step, _, _ in committed) == list(range(total))
    return [
        list(chain.from_iterable(tried[step, quorum, rank] for rank in range(count)))
        for step, quorum, count in sorted(committed)
    ]


@pytest.mark.parametrize("kind", ["async", "sync"])
@pytest.mark.parametrize("seed", range(10))
def test_committed_steps_have_their_samples_once(
    seed: int, kind: str, lighthouse: str, address: str, tmp_path: Path
) -> None:
    """The same samples as in a run that nothing happens to, in the same order."""
    random_ = random.Random(seed)
    mortal = random_.sample(range(_REPLICAS), random_.randint(1, 2))
    deaths = {
        replica: (str(10 * place + random_.randint(1, 8)), random_.choice(torchft_job.POINTS))
        for place, replica in enumerate(mortal)
    }
    with closing(Replicas([lighthouse, address, kind], tmp_path, deaths)) as replicas:
        total = replicas.live()
    with RemoteDataset(
        address, "train", seed=torchft_job.SEED, batch_size=GLOBAL_BATCH, rank=0, world_size=1
    ) as dataset:
        batches: Iterator[Any] = chain.from_iterable(repeat(dataset))
        wanted = [batch["id"].tolist() for batch in islice(batches, total)]

    assert wanted == _trained(tmp_path, total)


class _Healing:
    """A manager that heals a replica which it counts."""

    def current_step(self) -> int:
        return 0

    def participating_rank(self) -> int | None:
        return 1

    def num_participants(self) -> int:
        return 2

    def is_participating(self) -> bool:
        return False


def test_a_replica_that_heals_and_is_counted_is_refused() -> None:
    """Its samples would be lost: torchft sets its gradients to zero."""
    dataset = RemoteDataset("localhost:1", "train", batch_size=4, rank=0, world_size=1)
    with pytest.raises(BadArgumentError, match=r"samples would be lost.*init_sync=False"):
        next(StepBatches(dataset, _Healing()))
