"""No option of an order costs ten times a batch of the default; counted are calls, not time."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest

from headrace.order import (
    Batching,
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    Skips,
)

_BATCH, _BATCHES = 64, 128
_TABLE = ShardTable(np.full(10, 10_000), np.full(10, 1_000_000))
# A server takes 90 calls for a batch of 64 samples (tests/server/stream/test_python_calls.py).
_MOST_CALLS = 10 * 90


def _calls(order: Order | MixtureOrder) -> int:
    """Return the calls of Python and C functions that a batch takes, in the mean of many."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    order.sample_ids(0, 0, _BATCH)
    sys.setprofile(count)
    try:
        for start in range(20_000, 20_000 + _BATCH * _BATCHES, _BATCH):
            order.sample_ids(0, start, start + _BATCH)
    finally:
        sys.setprofile(None)
    return calls // _BATCHES


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle_samples": 1},
        {"shuffle_samples": 2},
        {"shuffle_samples": 20},
        {"shuffle_bytes": 1},
        {"shuffle_bytes": 200},
        {"shuffle_bytes": 10_000},
        {"shuffle_bytes": 10_000, "run_bytes": 1},
        {"shuffle_bytes": 0},
        {"shuffle": False},
        {"lanes": 8, "unit": 64},
        {"lanes": 64, "unit": 64},
        {"lanes": 64, "unit": 64, "shuffle": False},
        {"lanes": 64, "unit": 64, "shuffle_samples": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("skipped", [0, 50_000])
def test_options_of_one_dataset_cost_few_calls(options: dict[str, Any], skipped: int) -> None:
    """Little memory and much, lanes and storage order, with and without skips."""
    skips = Skips(range(1, skipped)) if skipped else None

    order = Order(OrderSpec(seed=1, **options), _TABLE, skips=skips)

    assert _calls(order) <= _MOST_CALLS


@pytest.mark.parametrize("unit", [1, 64])
@pytest.mark.parametrize("batching", Batching)
def test_batchings_of_a_mixture_cost_few_calls(batching: Batching, unit: int) -> None:
    """Units of any size, composed in any way, cost what random draws do."""
    datasets = tuple(MixtureDataset(f"d{i}", f"{i:032x}") for i in range(50))

    spec = MixtureSpec(datasets, OrderSpec(seed=1, unit=unit), batching)

    order = MixtureOrder(spec, [ShardTable(np.full(2, 1000), np.full(2, 100_000))] * 50)

    assert _calls(order) <= _MOST_CALLS
