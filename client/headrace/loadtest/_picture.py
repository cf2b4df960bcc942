"""Draw a run: throughput and stall over time, and how long ranks waited."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from headrace.loadtest._summary import later_waits
from headrace.loadtest._swarm import SwarmResult

_BUCKETS = 120  # points that the eye can tell apart
_LEAST_WAIT_S = 1e-5


def draw(swarm: SwarmResult, path: Path) -> None:
    """Write the picture of a run that received at least one batch.

    Args:
        swarm: What the ranks did.
        path: Where to; its suffix names the format, such as ``.png`` or ``.svg``.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is wanted

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    records = np.concatenate([result.records for result in swarm.results])
    since_s = records["at_s"] - swarm.began_at_s
    edges = np.linspace(0.0, max(float(since_s.max()), 1e-3), _BUCKETS + 1)
    width_s = edges[1] - edges[0]
    mib = np.histogram(since_s, edges, weights=records["payload_bytes"])[0] / (1 << 20) / width_s
    ranks = max(part.world_size for part in swarm.generations) * swarm.spec.jobs
    stall = np.histogram(since_s, edges, weights=records["wait_s"])[0] / (width_s * ranks)

    figure, (rate, stalled, waits) = plt.subplots(3, 1, figsize=(9, 9), layout="constrained")
    rate.plot(edges[:-1], mib)
    rate.set(title="throughput of all ranks", xlabel="seconds", ylabel="MiB/s", ylim=(0, None))
    stalled.plot(edges[:-1], 100 * np.minimum(stall, 1.0), color="tab:red")
    stalled.set(title="time spent waiting", xlabel="seconds", ylabel="% of time", ylim=(0, 100))
    later = np.maximum(later_waits(swarm.results), _LEAST_WAIT_S)
    bins = np.geomspace(_LEAST_WAIT_S, max(float(later.max(initial=0.0)), 1e-3), 60)
    waits.hist(later * 1e3, bins=bins * 1e3, color="tab:gray")
    waits.set(title="wait for a batch", xlabel="milliseconds", ylabel="batches")
    waits.set(xscale="log", yscale="log")
    figure.savefig(path, dpi=120)
    plt.close(figure)
