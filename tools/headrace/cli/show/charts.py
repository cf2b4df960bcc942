"""Draw what commands find: how a batch is dealt, what keeps a job busy, and what it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from headrace.loadtest.report.style import drawing

if TYPE_CHECKING:
    from headrace.bench import Diagnosis, StoreDiagnosis

_ROWS = 64
"""Ranks that a picture has room for (arbitrary)."""
_LINE = 90
"""Characters that fit beside each other above a picture."""
_HOPS = ("store", "decode", "server", "network", "client", "copy")


def draw_deal(
    path: Path,
    parts: Sequence[tuple[str, NDArray[np.int64]]],
    groups: Sequence[str],
    *,
    title: str,
    is_dark: bool,
) -> None:
    """Draw the batch of each rank as a line of samples, in the order in which it gets them.

    Args:
        path: The file to write.
        parts: The ranks, with the groups of their samples, ``(samples,) int64``.
        groups: The names of the groups.
        title: What it is a picture of.
        is_dark: Whether to draw on a dark background.
    """
    from matplotlib.colors import ListedColormap  # noqa: PLC0415 - only where a picture is wanted
    from matplotlib.patches import Patch  # noqa: PLC0415

    rows = parts[:_ROWS]
    cells = np.full((len(rows), max((len(codes) for _, codes in rows), default=1)), np.nan)
    for row, (_, codes) in zip(cells, rows, strict=True):
        row[: len(codes)] = codes
    with drawing(path, size=(9, 1.7 + 0.3 * len(rows)), is_dark=is_dark) as figure:
        axis = figure.subplots()
        colours = [f"C{at}" for at in range(len(groups))]
        shown = ListedColormap(colours)
        axis.imshow(cells, shown, aspect="auto", vmin=-0.5, vmax=len(groups) - 0.5)
        axis.set(title=title, xlabel="samples, in the order in which a rank gets them")
        axis.set_yticks(range(len(rows)), [name for name, _ in rows])
        axis.grid(visible=False)
        patches = [Patch(color=colour) for colour in colours]
        figure.legend(patches, list(groups), loc="outside upper center", ncols=5)


def draw_diagnosis(path: Path, found: Diagnosis, *, is_dark: bool) -> None:
    """Draw the rates of both passes, with the need, and where their time went."""
    passes = {"first pass": found.first, "second pass": found.again}
    with drawing(path, size=(9, 4.6), is_dark=is_dark) as figure:
        rates, hops = figure.subplots(2)
        rates.barh(list(passes), [one.samples_per_s for one in passes.values()], color="C0")
        rates.axvline(found.need.samples_per_s, color="C6", linestyle=":")
        figure.suptitle(fill(found.verdict, _LINE), ha="left", x=0.01)
        rates.set(title="Samples a second; the dotted line is the need")
        rates.xaxis.set_major_formatter("{x:,.0f}")
        start = np.zeros(len(passes))
        for at, hop in enumerate(_HOPS):
            share = np.array([100 * one.hops.get(hop, 0.0) for one in passes.values()])
            if share.any():
                hops.barh(list(passes), share, left=start, color=f"C{at}", label=hop)
            start += share
        hops.set(title="Where the time went", xlabel="% of the time", xlim=(0, 100))
        hops.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=len(_HOPS))
        for panel in (rates, hops):
            panel.invert_yaxis()


def draw_store(path: Path, found: StoreDiagnosis, *, is_dark: bool) -> None:
    """Draw the rate of a store by the number of simultaneous reads, with the need of the job."""
    with drawing(path, size=(9, 4.2), is_dark=is_dark) as figure:
        axis = figure.subplots()
        at_once = [rate.at_once for rate in found.rates]
        axis.plot(at_once, [rate.mib_per_s for rate in found.rates], "o-", label="the store")
        axis.axhline(found.need_mib_per_s, color="C6", linestyle=":", label="the job's need")
        figure.suptitle(fill(found.verdict, _LINE), ha="left", x=0.01)
        axis.set(xlabel="simultaneous reads", ylabel="MiB/s", xscale="log")
        axis.set(ylim=(0, None))
        axis.set_xticks(at_once, [str(each) for each in at_once])
        axis.legend()


def draw_use(path: Path, use: Mapping[str, float], *, title: str, is_dark: bool) -> None:
    """Draw how much of what servers have is used; more than 100 % is too much."""
    with drawing(path, size=(9, 1.2 + 0.45 * len(use)), is_dark=is_dark) as figure:
        axis = figure.subplots()
        shares = [100 * share for share in use.values()]
        colours = ["C6" if share > 100 else "C0" for share in shares]  # noqa: PLR2004 - percent
        bars = axis.barh(list(use), shares, color=colours)
        axis.bar_label(bars, [f"{share:,.0f} %" for share in shares], padding=4)
        axis.axvline(100, color="C6", linestyle=":")
        axis.set(title=title, xlabel="% of what should be used, with one replica away")
        axis.set_xlim(0, max(110, 1.1 * max(shares)))
        axis.invert_yaxis()
