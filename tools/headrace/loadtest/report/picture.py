"""Plot a run: throughput and waiting over time, faults, and a histogram of waiting times."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headrace.loadtest.report.style import drawing
from headrace.loadtest.report.summary import later_waits
from headrace.loadtest.report.timeline import Mark, marks_of, waiting_share
from headrace.loadtest.swarm.swarm import SwarmResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BUCKETS = 120  # arbitrary: points that remain distinct
_MIN_WAIT_S = 1e-5
_MAX_LABELS = 12
"""The maximum number of labelled marks; the others are only lines (arbitrary: what fits)."""


def draw(
    swarm: SwarmResult, path: Path, *, faults: Sequence[Mark] = (), is_dark: bool = False
) -> None:
    """Plot a run that received at least one batch.

    Args:
        swarm: The results of the swarm.
        path: The file to write; its suffix gives the format, such as ``.png`` or ``.svg``.
        faults: The faults that the load test caused.
        is_dark: Whether to draw on a dark background.
    """
    records = np.concatenate([result.records for result in swarm.results])
    began, last = swarm.began_at_s, float(records["at_s"].max())
    edges = np.linspace(began, max(last, began + 1e-3), _BUCKETS + 1)
    width_s = edges[1] - edges[0]
    mib = np.histogram(records["at_s"], edges, weights=records["payload_bytes"])[0]
    seconds = edges[:-1] - began

    with drawing(path, size=(9, 9), is_dark=is_dark) as figure:
        rate, stalled, waits = figure.subplots(3, 1)
        rate.plot(seconds, mib / (1 << 20) / width_s, color="C0")
        rate.set(title="Throughput of all ranks", xlabel="seconds", ylabel="MiB/s", ylim=(0, None))
        stalled.plot(seconds, 100 * waiting_share(swarm.results, edges), color="C1")
        stalled.set(title="Time spent waiting, including first batches", xlabel="seconds")
        stalled.set(ylabel="% of time", ylim=(0, 100), xlim=rate.get_xlim())
        marks = sorted([*marks_of(swarm), *faults], key=lambda mark: mark.at_s)
        _draw_marks((rate, stalled), marks, began)
        later = np.maximum(later_waits(swarm.results), _MIN_WAIT_S)
        bins = np.geomspace(_MIN_WAIT_S, max(float(later.max(initial=0.0)), 1e-3), 60)
        waits.hist(later * 1e3, bins=bins * 1e3, color="C2")
        waits.set(title="Wait for a batch, without first batches", xlabel="milliseconds")
        waits.set(ylabel="batches", xscale="log", yscale="log")


def _draw_marks(panels: Sequence[Axes], marks: Sequence[Mark], began: float) -> None:
    for number, mark in enumerate(marks):
        for panel in panels:
            panel.axvline(mark.at_s - began, color="C6", linestyle=":", linewidth=1)
        if number < _MAX_LABELS:
            panels[0].text(
                mark.at_s - began,
                0.98,
                f" {mark.what}",
                transform=panels[0].get_xaxis_transform(),
                rotation=90,
                verticalalignment="top",
                fontsize="small",
            )
