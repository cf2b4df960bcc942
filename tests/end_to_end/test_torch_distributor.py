"""The example of TorchDistributor, run as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle

import torch_distributor as example

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STEPS = example.SAMPLES // example.GLOBAL_BATCH_SIZE


@pytest.mark.long
# PySpark leaves the pipe of its torchrun open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_example_trains_on_processes_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    """Over a stop and a change of world size each sample comes once an epoch, and it learns."""
    first, second = example.run(spark, str(tmp_path / "line"))

    each = len(second.sample_ids) // 2  # of one process: a quarter of an epoch, and half of one
    processes = second.sample_ids[:each], second.sample_ids[each:]
    quarters, halves = (
        [ids[: each // 3] for ids in processes],
        [ids[each // 3 :] for ids in processes],
    )
    assert list(range(example.SAMPLES)) == sorted([*first.sample_ids, *quarters[0], *quarters[1]])
    assert list(range(example.SAMPLES)) == sorted([*halves[0], *halves[1]])
    assert (STEPS // 2, STEPS + STEPS // 2) == (len(first.losses), len(second.losses))
    assert second.losses[-1] < 0.01 < first.losses[0]
    assert pytest.approx([3, -2], abs=0.05) == second.weights["weight"][0]


def test_what_travels_to_the_processes_is_small() -> None:
    """An address and a state, with the function as it is pickled by value: a few KiB."""
    state = {"token": "x" * 300, "spec": {}}
    shipped = cloudpickle.dumps(  # type: ignore[no-untyped-call] # it has no types
        (example.train, "127.0.0.1:50051", state)
    )

    assert len(shipped) < 8192
