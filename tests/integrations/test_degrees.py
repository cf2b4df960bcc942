"""Frameworks, killed and resumed on 4, 2 and 3 ranks, over gloo on the CPU.

Ranks change in the middle of epochs 1 and 3, always by the framework's own checkpoint.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.client import RemoteDataset
from integrations.conftest import OWN
from integrations.degrees.asked import ask
from integrations.degrees.job import JOBS
from integrations.degrees.runs import Part, Seen, history
from integrations.degrees.told import EPOCHS, EVERY, LAST, Task
from integrations.line import GLOBAL_BATCH, STEPS, line_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

FIRST, SECOND = 13, 34
"""Where 4 ranks are killed, in epoch 1, and 2 ranks, in epoch 3."""


@pytest.mark.parametrize("framework", [name for name in JOBS if name not in OWN])
def test_nothing_is_lost_repeated_or_moved(framework: str, address: str, tmp_path: Path) -> None:
    """Global batches are those of one rank that is never killed; losses are the same bit for bit.

    The other run changes ranks at the same steps, and is not killed in between.
    """
    between = random.randrange(FIRST + EVERY, SECOND - EVERY)
    killed = _history(
        framework, address, tmp_path / "k", [(4, FIRST), (2, between), (2, SECOND), (3, LAST)]
    )
    calm = _history(framework, address, tmp_path / "c", [(4, FIRST), (2, SECOND), (3, LAST)])

    expected = _order(address)
    for part in [*killed, *calm]:
        for step, ids in part.ids.items():
            assert expected[step] == ids, (step, between)
    starts = [0, *((kill // EVERY) * EVERY for kill in (FIRST, between, SECOND))]
    assert starts == [min(part.steps) for part in killed]
    assert set(range(LAST)) == {step for part in killed for step in part.steps}
    twos = {**killed[1].steps, **killed[2].steps}
    for one, other in (
        (killed[0].steps, calm[0].steps),
        (twos, calm[1].steps),
        (killed[3].steps, calm[2].steps),
    ):
        assert other == one, between


@pytest.mark.parametrize("loader", ["headrace", "skipping"])
def test_the_exam_tells_loaders_apart(loader: str, tmp_path: Path) -> None:
    """Accelerate's guide skips batches of another order than that of the epoch."""
    with line_server(tmp_path / "line", GLOBAL_BATCH * STEPS) as server:
        found = ask(Task("accelerate", loader, server.address, tmp_path / "jobs"))

    assert [loader == "headrace"] * 3 == [
        found.same.is_exact,
        found.equal_losses,
        found.degrees.is_exact,
    ]


def _history(framework: str, address: str, folder: Path, parts: list[Part]) -> list[Seen]:
    found = history(Task(framework, "headrace", address, folder), parts)
    assert found[-1].is_well, found[-1].said
    return found


def _order(address: str) -> list[Any]:
    with RemoteDataset(address, "train", seed=3, batch_size=GLOBAL_BATCH) as dataset:
        return [batch["id"].tolist() for _ in range(EPOCHS) for batch in dataset]
