"""Draw every picture in one style, for a light or a dark background."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Colours = tuple[str, ...]
LIGHT: Final[Colours] = (
    *("#2666ec", "#a94e00", "#118463", "#9a4cc4", "#b8860b", "#1592b8", "#bf458d"),
    *("#4e5563", "#b6bdc8"),
)
"""Those of the page, which the colour-blind can tell apart; the last ones are for what is left."""
DARK: Final[Colours] = (
    *("#6f9bff", "#e28942", "#52cd9a", "#af6ec6", "#eac652", "#56c8ed", "#d46591"),
    *("#a7b1c1", "#4a5362"),
)
_INKS: Final = {False: ("#ffffff", "#14181f", "#dfe3e9"), True: ("#13161c", "#e7eaf0", "#262c37")}


@contextmanager
def drawing(path: Path, *, size: tuple[float, float], is_dark: bool = False) -> Iterator[Figure]:
    """Yield an empty figure, and write it when the context ends.

    Args:
        path: The file to write; its suffix gives the format, such as ``.png`` or ``.svg``.
        size: Width and height in inches.
        is_dark: Whether to draw on a dark background.
    """
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is wanted
    from cycler import cycler  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    paper, ink, line = _INKS[is_dark]
    colours = DARK if is_dark else LIGHT
    settings: Any = {
        **dict.fromkeys(("figure.facecolor", "savefig.facecolor", "axes.facecolor"), paper),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), ink),
        **dict.fromkeys(("axes.edgecolor", "grid.color"), line),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        **dict.fromkeys(("axes.grid", "axes.axisbelow"), True),
        "axes.prop_cycle": cycler(color=colours),
        "axes.titlelocation": "left",
        "axes.titlesize": "medium",
        "axes.titleweight": "bold",
        "font.size": 10,
        "svg.fonttype": "none",
        "svg.hashsalt": "headrace",
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.savefig(path, dpi=120)
