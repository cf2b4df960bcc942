"""Measure how fast and in how much memory the order opens and gives batches.

Run: ``python tests/benchmarks/bench_order_speed.py``. Each case runs in a process of its own, in
which NumPy is loaded before the clock starts. Times are of the processor, so that other work on the
machine does not count: nothing here waits. docs/decisions/order-version-2.md holds a table.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from headrace.order import (
    MixtureDataset,
    MixtureOrder,
    MixtureSpec,
    Order,
    OrderSpec,
    ShardTable,
    linear,
)

_BATCH = 8192
_BATCHES = 300
# Promised: milliseconds for the first batch, for one after it on average, and MiB.
_CASES: dict[str, tuple[float, float, float]] = {
    "10^9 samples in 10^5 shards": (100, 5, 64),
    "10^12 samples in 10^6 shards": (1500, 5, 128),
    "10^9 samples in one shard": (100, 5, 64),
    "10^9 samples, shuffle_samples=0": (100, 5, 64),
    "10^9 samples, 8 lanes": (100, 5, 64),
    "5,000 datasets, 256 pieces": (250, 5, float("inf")),
}
_Read = Callable[[int, int, int], NDArray[np.int64]]


def _table(samples: int, shards: int) -> ShardTable:
    counts = np.full(shards, samples // shards, np.int64)
    return ShardTable(counts, counts * 3000)


def _open(case: str) -> tuple[_Read, int]:
    if case.startswith("5,000"):
        return _open_mixture()
    samples = 10**12 if case.startswith("10^12") else 10**9
    shards = 10**6 if case.startswith("10^12") else 1 if case.endswith("one shard") else 10**5
    spec = OrderSpec(seed=1)
    if case.endswith("shuffle_samples=0"):
        spec = OrderSpec(seed=1, shuffle_samples=0)
    elif case.endswith("lanes"):
        spec = OrderSpec(seed=1, lanes=8, unit=_BATCH)
    order = Order(spec, _table(samples, shards))
    return order.sample_ids, order.sample_count


def _open_mixture() -> tuple[_Read, int]:
    datasets = tuple(MixtureDataset(f"d{i}", f"{i:032x}") for i in range(5000))
    weights = np.random.default_rng(1).random((2, 5000))
    tables = [_table(20 * (5000 + i), 20) for i in range(5000)]
    order = MixtureOrder(
        MixtureSpec(datasets, OrderSpec(seed=1), schedule=linear([0, 10**9], weights.tolist())),
        tables,
    )
    return order.sample_ids, order.sample_count


def _measure(case: str) -> dict[str, float]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    read, count = _open(case)
    read(0, count // 2, count // 2 + _BATCH)
    cold = time.process_time() - began
    later = _time(read, [count // 3 + i * _BATCH for i in range(_BATCHES)])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    anywhere = np.random.default_rng(2).integers(0, count - _BATCH, 50).tolist()
    far = _time(read, anywhere)
    return {
        "cold_ms": cold * 1e3,
        "mean_ms": float(later.mean()) * 1e3,
        "max_ms": float(later.max()) * 1e3,
        "far_ms": float(far.mean()) * 1e3,
        "mib": (peak - before) / 1024,
    }


def _time(read: _Read, positions: list[int]) -> NDArray[np.float64]:
    times = np.empty(len(positions))
    for place, position in enumerate(positions):
        began = time.process_time()
        read(0, position, position + _BATCH)
        times[place] = time.process_time() - began
    return times


def main() -> None:
    """Print the table; the status is 1 if a promise is broken."""
    print(f"{platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}")
    print(f"batches of {_BATCH}; promised in brackets; load {os.getloadavg()[0]:.1f}")
    print(
        f"{'case':30} {'cold, ms':>16} {'batch, ms':>12} {'worst':>7} {'anywhere':>9} {'MiB':>12}"
    )
    kept = True
    for case, (cold, batch, mib) in _CASES.items():
        command = [sys.executable, __file__, case]
        found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        kept &= found["cold_ms"] < cold and found["mean_ms"] < batch and found["mib"] < mib
        memory = f"{found['mib']:.0f} ({mib:.0f})" if mib < float("inf") else f"{found['mib']:.0f}"
        print(
            f"{case:30} {found['cold_ms']:7.0f} ({cold:.0f}) {found['mean_ms']:7.2f} ({batch:.0f})"
            f" {found['max_ms']:7.2f} {found['far_ms']:9.2f} {memory:>12}"
        )
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(_measure(sys.argv[1])))
    else:
        main()
