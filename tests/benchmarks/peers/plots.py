"""Draw the figures of a run as small SVG files that are the same for the same figures.

By matplotlib, which `headrace loadtest --picture` needs anyway. Text stays text, so a plot has a
few kilobytes and takes the font of whoever looks at it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl

from benchmarks.peers.page import Figures

mpl.use("Agg")
from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headrace",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_OURS, _OTHERS = "tab:blue", "tab:gray"


def draw(part: str, found: Figures, path: Path) -> None:
    """Draw one part of the figures: ``local``, ``s3`` or ``order``."""
    with mpl.rc_context(_SETTINGS):
        if part == "order":
            figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
            _lines(axes, found["order"])
        else:
            kinds = [
                kind for kind in found["kinds"] if kind in {row["kind"] for row in found[part]}
            ]
            most = max(len({row["library"] for row in found[part]}), 2)
            figure, grid = plt.subplots(
                len(kinds), 1, figsize=(7, (0.24 * most + 0.8) * len(kinds)), layout="constrained"
            )
            for axes, kind in zip(grid if len(kinds) > 1 else [grid], kinds, strict=True):
                _dots(axes, [row for row in found[part] if row["kind"] == kind], kind)
        figure.savefig(path, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _dots(axes: Axes, rows: Sequence[dict[str, Any]], kind: str) -> None:
    shown = [row for row in rows if row.get("rate")]
    for place, row in enumerate(reversed(shown)):
        rates = row["rate"]
        middle = statistics.median(rates)
        color = _OURS if row["library"] == "headrace" else _OTHERS
        axes.plot([min(rates), max(rates)], [place, place], color=color)
        axes.plot([middle], [place], "o", color=color)
        axes.annotate(
            f"{middle:,.0f}", (max(rates), place), (6, -3), textcoords="offset points", color=color
        )
    axes.set(xscale="log", title=f"{kind}, samples/s", yticks=range(len(shown)))
    axes.set_yticklabels([row["library"] for row in reversed(shown)])
    axes.margins(x=0.15, y=0.12)
    axes.grid(axis="x", which="major", alpha=0.3)


def _lines(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    for name in dict.fromkeys(row["library"] for row in rows):
        own = [row for row in rows if row["library"] == name]
        seconds = [statistics.median(row["seconds"]) for row in own]
        axes.plot([row["samples"] for row in own], seconds, "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="samples of the epoch", ylabel="processor seconds")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
