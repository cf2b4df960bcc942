"""Plot a run: throughput and waiting over time, faults, and a histogram of waiting times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.loadtest.report.summary import later_waits
from headrace.loadtest.report.timeline import Mark, marks_of, waiting_share
from headrace.loadtest.swarm.swarm import SwarmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BUCKETS = 120  # arbitrary: points that remain distinct
_MIN_WAIT_S = 1e-5
_MAX_LABELS = 12
"""The maximum number of labelled marks; the others are only lines (arbitrary: what fits)."""


def draw(swarm: SwarmResult, path: Path, *, faults: Sequence[Mark] = ()) -> None:
    """Plot a run that received at least one batch.

    Args:
        swarm: The results of the swarm.
        path: The file to write; its suffix gives the format, such as ``.png`` or ``.svg``.
        faults: The faults that the load test caused.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is wanted

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    records = np.concatenate([result.records for result in swarm.results])
    began, last = swarm.began_at_s, float(records["at_s"].max())
    edges = np.linspace(began, max(last, began + 1e-3), _BUCKETS + 1)
    width_s = edges[1] - edges[0]
    mib = np.histogram(records["at_s"], edges, weights=records["payload_bytes"])[0]
    seconds = edges[:-1] - began

    figure, (rate, stalled, waits) = plt.subplots(3, 1, figsize=(9, 9), layout="constrained")
    rate.plot(seconds, mib / (1 << 20) / width_s)
    rate.set(title="throughput of all ranks", xlabel="seconds", ylabel="MiB/s", ylim=(0, None))
    stalled.plot(seconds, 100 * waiting_share(swarm.results, edges), color="tab:red")
    stalled.set(title="time spent waiting, including first batches", xlabel="seconds")
    stalled.set(ylabel="% of time", ylim=(0, 100), xlim=rate.get_xlim())
    marks = sorted([*marks_of(swarm), *faults], key=lambda mark: mark.at_s)
    _draw_marks((rate, stalled), marks, began)
    later = np.maximum(later_waits(swarm.results), _MIN_WAIT_S)
    bins = np.geomspace(_MIN_WAIT_S, max(float(later.max(initial=0.0)), 1e-3), 60)
    waits.hist(later * 1e3, bins=bins * 1e3, color="tab:gray")
    waits.set(title="wait for a batch, without first batches", xlabel="milliseconds")
    waits.set(ylabel="batches", xscale="log", yscale="log")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _draw_marks(drawings: Sequence[Axes], marks: Sequence[Mark], began: float) -> None:
    for number, mark in enumerate(marks):
        for drawing in drawings:
            drawing.axvline(mark.at_s - began, color="black", linestyle=":", linewidth=0.8)
        if number < _MAX_LABELS:
            drawings[0].text(
                mark.at_s - began,
                0.98,
                f" {mark.what}",
                transform=drawings[0].get_xaxis_transform(),
                rotation=90,
                verticalalignment="top",
                fontsize="small",
            )
