"""Accelerate, killed and resumed on 4, 2 and 3 ranks, over gloo on the CPU.

Ranks change in the middle of epochs 1 and 3, always by the framework's own checkpoint.
"""

from __future__ import annotations

import json
import multiprocessing
import random
from pathlib import Path
from typing import Any

import pytest

from exam.ranks import free_port
from headrace.client import RemoteDataset
from integrations.degrees_job import EPOCHS, EVERY, JOBS, main
from integrations.line import GLOBAL_BATCH, STEPS

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

NEVER = EPOCHS * STEPS
FIRST, SECOND = 13, 34
"""Where 4 ranks are killed, in epoch 1, and 2 ranks, in epoch 3."""

Seen = dict[int, list[tuple[list[int], float]]]
"""By step, of each rank: ids and loss."""


def _run(framework: str, address: str, folder: Path, ranks: int, kill: int) -> Seen:
    """Run until it dies or ends, and return what it saw."""
    folder.mkdir(exist_ok=True)
    for log in folder.glob("*.jsonl"):
        log.unlink()
    told = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "GROUP_RANK": "0"}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    told |= {"ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    # Forked from a process that has imported the frameworks, which takes longer than the job.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["integrations.degrees_imports"])
    started = [
        context.Process(
            target=main,
            args=(framework, address, str(folder), kill, told | {"RANK": rank, "LOCAL_RANK": rank}),
        )
        for rank in map(str, range(ranks))
    ]
    for process in started:
        process.start()
    try:
        for process in started:
            process.join(300)
        codes = {process.exitcode for process in started}
    finally:
        for process in started:
            process.kill()
            process.join()
    tail = (folder / "0.txt").read_text()[-3000:]
    assert codes == {0} if kill == NEVER else -9 in codes, tail
    lines = [(folder / f"{rank}.jsonl").read_text().splitlines() for rank in range(ranks)]
    seen: Seen = {}
    for rank in lines:
        for text in rank:
            step, ids, loss = json.loads(text)
            seen.setdefault(step, []).append((ids, loss))
    return {step: found for step, found in seen.items() if len(found) == ranks}


def _history(
    framework: str, address: str, folder: Path, parts: list[tuple[int, int]]
) -> list[Seen]:
    return [_run(framework, address, folder, ranks, kill) for ranks, kill in parts]


@pytest.mark.parametrize("framework", JOBS)
def test_nothing_is_lost_repeated_or_moved(framework: str, address: str, tmp_path: Path) -> None:
    """Global batches are those of one rank that is never killed; losses are the same bit for bit.

    The other run changes ranks at the same steps, and is not killed in between.
    """
    between = random.randrange(FIRST + EVERY, SECOND - EVERY)
    killed = _history(
        framework, address, tmp_path / "k", [(4, FIRST), (2, between), (2, SECOND), (3, NEVER)]
    )
    calm = _history(framework, address, tmp_path / "c", [(4, FIRST), (2, SECOND), (3, NEVER)])

    expected = _order(address)
    for part in [*killed, *calm]:
        for step, found in part.items():
            assert expected[step] == [each for ids, _ in found for each in ids], (step, between)
    starts = [0, *((kill // EVERY) * EVERY for kill in (FIRST, between, SECOND))]
    assert starts == [min(part) for part in killed]
    assert set(range(NEVER)) == {step for part in killed for step in part}
    twos = {**killed[1], **killed[2]}
    for one, other in ((killed[0], calm[0]), (twos, calm[1]), (killed[3], calm[2])):
        assert other == one, between


def _order(address: str) -> list[Any]:
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        return [batch["id"].tolist() for _ in range(EPOCHS) for batch in dataset]  # type: ignore[union-attr] # a tensor
