"""How a swarm is planned, and which plans are refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import BadArgumentError
from headrace.loadtest import Pause, Rescale, SwarmSpec
from headrace.order import OrderSpec


def _spec(**changed: Any) -> SwarmSpec:
    settings: dict[str, Any] = {
        "targets": ("127.0.0.1:1",),
        "dataset": "ds",
        "sample_count": 1000,
        "order": OrderSpec(seed=5),
        "global_batch_size": 16,
        "ranks": 8,
        "steps": 100,
    }
    return SwarmSpec(**{**settings, **changed})


def test_rescales_cut_the_run() -> None:
    """Each generation begins where the one before it ended."""
    spec = _spec(rescales=(Rescale(6, 0.5), Rescale(3, 0.75)))

    found = [(part.world_size, part.first_step, part.end_step) for part in spec.generations()]

    assert [(8, 0, 50), (6, 50, 75), (3, 75, 100)] == found


def test_a_step_has_its_epoch() -> None:
    """62 whole batches an epoch: step 62 is the first of epoch 1."""
    assert [(0, 61), (1, 0)] == [_spec().batch_at(step) for step in (61, 62)]


def test_jobs_have_seeds_of_their_own() -> None:
    """Job j shuffles with the seed plus j."""
    seeds = [_spec(jobs=2).options(job=job, rank=0, world_size=8).order.seed for job in (0, 1)]

    assert [5, 6] == seeds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sample_count": 10}, "less than one global batch of 16"),
        ({"rescales": (Rescale(6, 0.5),), "seconds": 3.0}, "limited in seconds"),
        ({"pauses": (Pause(1, 1.0, 0.5),), "seconds": 3.0}, "limited in seconds"),
        ({"pauses": (Pause(8, 1.0, 0.5),)}, r"rank 8 cannot pause; expected a rank in \[0, 7\]"),
        ({"rescales": (Rescale(6, 0.5), Rescale(5, 0.5))}, r"expected increasing shares"),
        ({"rescales": (Rescale(6, 1.0),)}, r"expected increasing shares in \(0, 1\)"),
    ],
)
def test_swarms_that_cannot_run_are_refused(changed: dict[str, Any], message: str) -> None:
    """Before anything is read, with what was wanted."""
    with pytest.raises(BadArgumentError, match=message):
        _spec(**changed)
